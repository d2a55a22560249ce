"""The configuration page is what the schema says."""

from __future__ import annotations

from sdpo.cli import config_docs
from sdpo.config import fields, keys


def test_the_page_in_docs_is_up_to_date():
    text = config_docs.PAGE.read_text(encoding="utf-8")
    assert text == config_docs.page(), "run python -m sdpo.cli.config_docs"


def test_the_page_has_every_key_with_its_description():
    text = config_docs.page()
    for item in fields.by_key().values():
        assert f"| `{item.key.rpartition('.')[2]}` | `{item.type.replace('|', chr(92) + '|')}` |" in text, item.key
        assert item.meaning.replace("|", "\\|") in text, item.key
    assert all(f"`{key}`" in text for key in (*keys.RENAMED, *keys.SETTLED))


def test_check_says_when_the_page_is_old(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(config_docs, "PAGE", tmp_path / "docs" / "configuration.md")
    assert config_docs.main(["--check"]) == 1
    assert "python -m sdpo.cli.config_docs" in capsys.readouterr().err
    assert config_docs.main([]) == 0
    assert config_docs.main(["--check"]) == 0

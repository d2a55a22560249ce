"""An exported folder to the hub: named files only, into a private repository unless told otherwise."""

from __future__ import annotations

from pathlib import Path

from sdpo.errors import ConfigError, ModelError, first_line, problem

# A run's rollouts, logs and optimizer are nobody's business.
PUBLISHED = (
    "README.md", "config.json", "generation_config.json", "adapter_config.json", "adapter_model.safetensors",
    "model*.safetensors", "model.safetensors.index.json", "chat_template.jinja", "additional_chat_templates/*.jinja",
    "tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt",
    "merges.txt", "spiece.model",
)  # fmt: skip


def published(folder: Path) -> dict[str, Path]:
    """The files by their names on the hub."""
    files = sorted({file for pattern in PUBLISHED for file in folder.glob(pattern)})
    return {file.relative_to(folder).as_posix(): file for file in files}


def push(folder: Path, repository: str, public: bool) -> str:
    """Uploads in one commit, whole or not at all; returns its address. Raises ConfigError for a repository that others
    can read, or the other way round, and ModelError for what the hub or the way there refuses."""
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    api = HfApi()
    try:
        api.create_repo(repository, private=not public, exist_ok=True)
        private = bool(api.repo_info(repository).private)
        if private == public:
            found, way = ("private", "leave out --public") if private else ("public", "--public to publish there")
            raise ConfigError(
                problem("--push", f"{repository}, {found}", f"a {'public' if public else 'private'} one", way)
            )
        operations = [CommitOperationAdd(name, str(file)) for name, file in published(folder).items()]
        return str(api.create_commit(repository, operations, commit_message="Exported by sdpo").commit_url)
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OSError) as error:
        raise ModelError(f"--push {repository}: {first_line(error)}; nothing was published") from error

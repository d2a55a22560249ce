"""A run whose engine computes another model than its trainer stops."""

from __future__ import annotations

import pytest

from sdpo.config.compose import compose
from sdpo.config.schema import Config
from sdpo.errors import RolloutError
from sdpo.main_sdpo import main
from sdpo.training.agreement import check_agreement, difference_limit


def config(**rollout) -> Config:
    found = Config()
    found.trainer.device = "cpu"
    for name, value in rollout.items():
        setattr(found.actor_rollout_ref.rollout, name, value)
    return found


def test_the_limit_is_what_the_dtypes_explain() -> None:
    assert difference_limit(config()) == 0.01
    assert difference_limit(config(dtype="bfloat16")) == 0.2
    on_gpu, half = config(), config()
    on_gpu.trainer.device = "cuda"
    half.actor_rollout_ref.actor.fsdp_config.param_dtype = "bfloat16"
    assert difference_limit(on_gpu) == difference_limit(half) == 0.2
    assert difference_limit(config(max_log_prob_diff=1.5)) == 1.5


@pytest.mark.parametrize("setting", [{"max_log_prob_diff": 0.0}, {"top_p": 0.9}, {"top_k": 20}])
def test_there_is_no_limit_where_none_is_wanted_or_none_can_be(setting) -> None:
    check_agreement({"rollout/log_prob_diff_mean": 3.0}, config(**setting), 1)


def test_a_step_above_the_limit_is_named_and_one_without_samplers_log_probs_passes() -> None:
    with pytest.raises(RolloutError, match="2.2 nats in step 7, more than 0.01"):
        check_agreement({"rollout/log_prob_diff_mean": 2.2}, config(), 7)
    check_agreement({"rollout/log_prob_diff_mean": 0.009}, config(), 7)
    check_agreement({}, config(), 7)


def test_a_run_with_an_engine_of_another_model_stops_in_its_first_step(tmp_path, monkeypatch, capsys) -> None:
    """The engine divides the logits by 1.5, as one that misses a family's scale would."""
    from sdpo.rollout import hf_generate

    draw = hf_generate.RequestStreams.draw
    monkeypatch.setattr(hf_generate.RequestStreams, "draw", lambda self, logits: draw(self, logits / 1.5))
    overrides = ["cluster=inline", "actor_rollout_ref.rollout.name=hf", "trainer.total_training_steps=2"]
    overrides += ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.save_freq=1"]
    overrides += ["trainer.val_before_train=false", "trainer.test_freq=0", f"trainer.default_local_dir={tmp_path}"]
    assert compose(overrides)
    assert main(overrides) == 7
    assert "rollout/log_prob_diff_mean" in capsys.readouterr().err
    assert not list(tmp_path.glob("checkpoints/step_*"))

"""What is told about a turn is told just before that turn, and costs no more than that."""

from __future__ import annotations

import asyncio

import pytest

from sdpo.algorithms.rows import rows_of
from sdpo.config.schema import SelfDistillationConfig
from sdpo.environments.episode import Policy
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.rollout.engine import SamplingSpec
from sdpo.rollout.scripted import ScriptedEngine
from sdpo.tokens.chat import ChatRenderer
from sdpo.tokens.partition import side_tokens

END, START = "<|im_end|>", "<|im_start|>"
HINT = "HINT-7"
TURNS = ["ax0", "bx1", "cx2", "dx3"]


@pytest.fixture(scope="module")
def chat(chatml_tokenizer):
    return ChatRenderer(chatml_tokenizer)


def play(chat, said, hinted: int, hint: str = HINT, prompt_text: str = "q") -> tuple[Group, Policy]:
    """An episode of TURNS with messages of the roles `said` in between, and feedback for one turn."""
    prompt = Prompt("p", ({"role": "system", "content": "s"}, {"role": "user", "content": prompt_text}), "x")
    script = {("p/0" if at == 0 else f"p/0/{at}"): chat.tokenizer.encode(t + END) for at, t in enumerate(TURNS)}
    engine = ScriptedEngine(script, [chat.tokenizer.eos_token_id])
    ids = chat.student_ids(prompt)
    policy = Policy(
        "p/0", prompt, ids, engine, chat, lambda t, room: SamplingSpec(max_tokens=room), chat.decode, 999, 0
    )

    async def run():
        await policy.reply()
        for at, role in enumerate(said):
            await policy.reply({"role": role, "content": f"result {at}"})

    asyncio.run(run())
    policy.turns[hinted].feedback = hint
    grade = Grade(GradeStatus.WRONG, 0.0)
    sample = Sample("p", 0, ids, policy.response_ids, "dd", "stop", 0, policy.log_probs, grade)
    sample.turns, sample.sequences = policy.turns, policy.sequences
    return Group(prompt, [sample]), policy


def distilled(chat, group, **settings):
    builder = RepromptBuilder(SelfDistillationConfig(**settings), chat)
    [reprompt], counts = builder.build(group)
    return reprompt, counts


@pytest.mark.parametrize("said", [("tool",) * 3, ("user",) * 3, ("tool", "user", "tool")])
@pytest.mark.parametrize("hinted", range(4))
def test_the_hint_stands_before_its_turn_once_and_nothing_of_the_future_does(chat, said, hinted):
    group, policy = play(chat, said, hinted)
    reprompt, _ = distilled(chat, group)
    [row] = rows_of(group.samples[0], reprompt)
    [part] = row.distillation
    turn = policy.turns[hinted]
    assert part.span == turn.span
    assert list(row.token_ids[slice(*part.span)]) == chat.tokenizer.encode(TURNS[hinted] + END)
    text = chat.decode(part.context_ids, skip_special_tokens=False)
    assert text.count(HINT) == 1 and text.endswith(f"{START}assistant\n")
    assert not any(later in text for later in (*TURNS[hinted:], f"result {hinted}"))
    assert reprompt.prompt_ids == [] and HINT in reprompt.text and reprompt.used_feedback
    if hinted:  # behind the tokens of the turn before, as they were drawn; the rest is the template's
        before = policy.turns[hinted - 1].span[1]
        assert list(part.context_ids[:before]) == policy.sequences[0][:before]
        conversation = [*group.prompt.messages]
        for answer, role in zip(TURNS[: hinted - 1], said, strict=False):
            conversation += [{"role": "assistant", "content": answer}]
            conversation += [{"role": role, "content": f"result {len(conversation) // 2 - 1}"}]
        conversation += [{"role": "assistant", "content": TURNS[hinted - 1]}]
        last = {"role": said[hinted - 1], "content": f"result {hinted - 1}"}
        shown = text[text.index("The following is feedback") :].removesuffix(f"{END}\n{START}assistant\n")
        if last["role"] == "user":
            conversation += [{**last, "content": f"{last['content']}\n\n{shown}"}]
        else:
            conversation += [last, {"role": "user", "content": shown}]
        assert text == chat.render_text(conversation)


@pytest.mark.parametrize("hinted", [1, 2, 3])
def test_a_hint_costs_the_teacher_the_hint_and_the_span_beyond_what_is_shared(chat, hinted):
    """With the other turns distilled behind the same history, what the hint adds is itself, the header and its turn."""
    group, policy = play(chat, ("tool",) * 3, hinted)
    reprompt, _ = distilled(chat, group)
    [row] = rows_of(group.samples[0], reprompt)
    turn, context = policy.turns[hinted], row.distillation[0].context_ids
    plain = rows_of(group.samples[0], type(reprompt)(group.samples[0].prompt_ids, "", None, False))
    both = [*plain[0].distillation, row.distillation[0]]
    row.distillation = tuple(plain[0].distillation)
    without = side_tokens([row])[1]
    row.distillation = tuple(both)
    shared = next((n for n, (a, b) in enumerate(zip(context, row.token_ids)) if a != b), len(context))
    assert shared >= policy.turns[hinted - 1].span[1]  # all of the history
    added = side_tokens([row])[1] - without
    assert added == len(context) - shared + turn.span[1] - turn.span[0]
    assert (
        added
        < len(chat.tokenizer.encode(f"{HINT} " + "The following is feedback from your unsuccessful attempt:")) + 30
    )


def test_feedback_that_is_switched_off_gives_no_hint(chat):
    group, _ = play(chat, ("tool",) * 3, 1)
    reprompt, counts = distilled(chat, group, include_environment_feedback=False)
    assert reprompt is None and counts["none"] == 1


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_long_hint_is_cut_to_the_room_of_a_reprompt_and_dropped_where_there_is_none(chat, side):
    long = " ".join(f"word{i}" for i in range(500))
    group, policy = play(chat, ("tool",) * 3, 2, long)
    sample, limit = group.samples[0], 120
    reprompt, _ = distilled(chat, group, max_reprompt_len=limit, reprompt_truncation=side)
    extra = len(reprompt.turns[2]) - policy.turns[2].span[0]
    assert len(sample.prompt_ids) + extra <= limit < len(sample.prompt_ids) + extra + 20
    text = chat.decode(reprompt.turns[2])
    assert ("word0 " in text) == (side == "right") and ("word499" in text) == (side == "left")
    nothing, counts = distilled(chat, group, max_reprompt_len=len(sample.prompt_ids) + 5)
    assert nothing is None and counts["masked_overlong"] == 1

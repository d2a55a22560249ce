"""Names of vLLM's parsers (0.30), for settings to be checked without importing vLLM. A test compares them with it."""

from __future__ import annotations

# Reasoning parser -> the family of marks (`sdpo.tokens.think.FAMILIES`) that it looks for.
REASONING_PARSERS = {
    **dict.fromkeys(
        (
            *("deepseek_r1", "deepseek_v3", "deepseek_v4", "deepseek_v41", "ernie45", "glm45", "glm47", "holo2"),
            *("hunyuan_a13b", "hy_v3", "hy_v4", "kimi_k2", "ling3", "mimo", "minimax_m2", "minimax_m2_append_think"),
            *("nemotron_v3", "olmo3", "poolside_v1", "qwen3", "step3", "step3p5"),
        ),
        "think",
    ),
    "cohere_command3": "cohere",
    "cohere_command4": "cohere",
    "gemma4": "gemma",
    "granite": "granite",
    "inkling": "inkling",
    "k2_horizon": "ifm|think",
    "kimi_k3": "kimi_k3",
    "minimax_m3": "mm:think",
    "mistral": "mistral",
    "muse_glimmer": "muse",
    "openai_gptoss": "harmony",
    "seed_oss": "seed:think",
}

TOOL_PARSERS = (
    *("apertus", "cohere_command3", "cohere_command4", "deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4"),
    *("deepseek_v41", "dots", "ernie45", "functiongemma", "gemma4", "gigachat3", "glm45", "glm47", "granite"),
    *("granite-20b-fc", "granite4", "hermes", "hunyuan_a13b", "hy_v3", "hy_v4", "inkling", "internlm", "jamba"),
    *("k2_horizon", "kimi_k2", "kimi_k3", "lfm2", "ling3", "llama3_json", "llama4_json", "llama4_pythonic", "longcat"),
    *("mimo", "minicpm5", "minimax_m2", "minimax_m3", "mistral", "muse_glimmer", "olmo3", "openai", "phi4_mini_json"),
    *("poolside_v1", "pythonic", "qwen3_coder", "qwen3_xml", "seed_oss", "step3", "step3p5", "xlam"),
)

"""Every setting, its type, its default and one line on what it means. The only home of defaults.

Names and places are verl's where verl has the setting, values the paper's; the YAML tree holds what a root (`sdpo`,
`baseline_grpo`), a model or a task changes. `docs/configuration.md` is generated from this file: the comment behind a field
is its description.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# A setting and its description stay on one line: the documentation is made from them.
# fmt: off


@dataclass
class DataConfig:
    train_files: list[str] = field(default_factory=lambda: ["builtin://programs/hard/train"])  # parquet, JSON, JSON lines, a data set folder, `hub://OWNER/NAME@COMMIT:SPLIT`; `builtin://` is the embedded task
    val_files: list[str] = field(default_factory=lambda: ["builtin://programs/hard/test"])  # held-out problems
    train_max_samples: int = -1  # use only the first rows; -1: all
    val_max_samples: int = -1  # likewise for validation
    train_batch_size: int = 32  # prompts per step
    val_batch_size: int | None = None  # prompts per validation call; null: all at once
    max_prompt_length: int = 2048  # tokens, rendered with the chat template; less where it is not set and the model has fewer positions
    max_response_length: int = 8192  # tokens; likewise
    filter_overlong_prompts: bool = True  # drop and count rows over max_prompt_length; false: error at the first
    shuffle: bool = True  # a new order every epoch, from (seed, epoch)
    seed: int = 0  # order of the prompts and sampling seeds
    prompt_key: str = "prompt"  # column with the chat messages, or the question as text
    answer_key: str | None = None  # column with the ground truth, e.g. answer; null: reward_model.ground_truth; the same as prompt_key: the last message is the answer
    solution_key: str | None = None  # column with a worked solution: the teacher's demonstration where no response to the problem succeeded
    feedback_key: str = "privileged_context"  # column with text that the teacher is told about every failure on this row
    reward_fn_key: str = "data_source"  # column that picks the grader
    data_source: str | None = None  # of rows without that column
    trust_remote_code: bool = False  # sets actor_rollout_ref.model.trust_remote_code too: tokenizer and model are one folder
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)  # for student and teacher alike, e.g. {enable_thinking: false}


@dataclass
class ModelConfig:
    path: str = "builtin://tiny/hard"  # Hugging Face folder or hub id; `builtin://` is the embedded model
    revision: str | None = None  # hub revision to pin
    tokenizer_path: str | None = None  # null: same as path
    trust_remote_code: bool = False  # run code that the model folder ships
    enable_gradient_checkpointing: bool = False  # recompute activations in backward: less memory, a third slower
    enable_dropout: bool = False  # true: what config.json says of dropout holds when the student is scored; false: none, of any kind
    override_config: dict[str, Any] = field(default_factory=dict)  # fields of the model's config.json
    attn_implementation: str | None = None  # eager | sdpa | flash_attention_2; null: best available
    lora_rank: int = 0  # of the adapter that is trained instead of the weights (docs/adapters.md); 0: all weights are trained
    lora_alpha: int = 16  # what B·A is multiplied by is lora_alpha / lora_rank
    target_modules: Any = "all-linear"  # linear layers that get an adapter: all-linear (all but the output head), a list of names, or a regular expression
    lora_adapter_path: str | None = None  # folder of an adapter in PEFT's format to start from; rank, alpha and modules are its own
    lora_dropout: float = 0.0  # of what goes into A, while the student is scored; sampling has none
    use_rslora: bool = False  # multiply B·A by lora_alpha / sqrt(lora_rank)
    use_dora: bool = False  # train the length of each row of a weight apart from its direction


@dataclass
class OptimConfig:
    lr: float = 1e-6  # peak learning rate
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])  # AdamW
    eps: float = 1e-8  # AdamW
    weight_decay: float = 0.01  # AdamW
    lr_warmup_steps: int = -1  # rollout batches of linear warm-up; -1: from the ratio
    lr_warmup_steps_ratio: float = 0.0  # share of all rollout batches, used when lr_warmup_steps is -1
    warmup_style: str = "constant"  # constant | cosine
    lr_stable_steps: int = 0  # rollout batches at the full rate before the cosine
    lr_decay_steps: int = -1  # rollout batches of the cosine; -1: to the end of the run
    min_lr_ratio: float = 0.0  # floor of the cosine, as a share of lr
    clip_grad: float = 1.0  # largest global gradient norm; 0: never clip


@dataclass
class FsdpConfig:
    param_dtype: str = "float32"  # dtype of forward and backward
    reduce_dtype: str = "float32"  # dtype of the gradient reduction
    reshard_after_forward: bool = True  # free the gathered weights between forward and backward
    offload_policy: bool = False  # keep parameters and optimizer in CPU memory
    optimizer_offload: bool = False  # keep AdamW's moments in CPU memory (on a CPU: in a file) between optimizer steps
    fsdp_size: int = -1  # ranks a model copy is sharded over; -1: all


@dataclass
class SelfDistillationConfig:
    full_logit_distillation: bool = True  # false: only the sampled token (needs alpha=1)
    alpha: float = 0.5  # 0: KL(teacher||student), 1: KL(student||teacher), between: generalized Jensen-Shannon
    distillation_topk: int | None = None  # null: the whole vocabulary
    distillation_add_tail: bool = True  # one more category for all that is not in the top-k
    support: str = "student"  # whose top-k: student | teacher | union
    is_clip: float | None = 2.0  # cap of the importance weight p/p_old; null: no weight
    divergence_clip: float | None = None  # cap of a token's divergence; null: none
    loss_normalization: str = "component"  # what each component of the loss divides by: its own tokens of the optimizer step | all trained tokens | micro_batch (its own of the micro-batch, only to reproduce others' numbers)
    teacher_regularization: str = "ema"  # ema | trust-region | frozen | live | snapshot (the student of every so many rollout batches)
    teacher_update_rate: float = 0.05  # tau: EMA step, or weight of the student in the trust region
    teacher_snapshot_every: int = 10  # rollout batches from one snapshot to the next
    teacher_update_interval: str = "batch"  # the EMA step comes once after a rollout batch, or after each optimizer_step of it
    teacher_master_dtype: str = "float32"  # float32 | bfloat16 (where fsdp_config.param_dtype is; the EMA also keeps what rounding cuts off)
    teacher_lora_rank: int | None = None  # with an adapter: rank of the averaged B·A that ema and snapshot keep; null: three times the student's
    teacher_offload: bool = False  # keep the teacher in CPU memory (on a CPU: in a file); its layers come one by one
    include_environment_feedback: bool = True  # show the grader's text to the teacher
    environment_feedback_only_without_solution: bool = False  # drop the feedback when there is a demonstration
    success_reward_threshold: float = 1.0  # reward from which a sibling may serve as demonstration
    dont_reprompt_on_self_success: bool = True  # a success is never its own demonstration
    demonstration_choice: str = "first"  # first | random | shortest
    remove_thinking_from_demonstration: bool = True  # strip `<think>` blocks
    max_reprompt_len: int = 10240  # tokens of the teacher's prompt; likewise
    reprompt_truncation: str = "right"  # end at which an overlong feedback or demonstration is cut: right | left | error
    reprompt_template: str = "{prompt}{solution}{feedback}\n\nCorrectly solve the original question."  # the teacher's user message
    solution_template: str = "\nCorrect solution:\n\n{successful_previous_attempt}"  # used when there is a demonstration
    feedback_template: str = "\nThe following is feedback from your unsuccessful earlier attempt:\n\n{feedback_raw}"  # used when there is feedback


@dataclass
class PolicyLossConfig:
    loss_mode: str = "sdpo"  # the algorithm: sdpo | vanilla (GRPO's clipped policy gradient) | gspo (the same with the response's ratio) | srpo (distillation and policy gradient, routed)


@dataclass
class ActorConfig:
    strategy: str = "fsdp2"  # only fsdp2
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)  # which algorithm
    self_distillation: SelfDistillationConfig = field(default_factory=SelfDistillationConfig)  # SDPO's settings
    optim: OptimConfig = field(default_factory=OptimConfig)  # optimizer and schedule
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)  # sharding
    ppo_mini_batch_size: int = 32  # prompts per optimizer step; must divide data.train_batch_size, which it follows where it is not set
    ppo_micro_batch_size_per_gpu: int | None = None  # rows per forward; null: as many as the token budget holds
    use_dynamic_bsz: bool | None = None  # true: fill micro-batches up to the token budget; null: unless ppo_micro_batch_size_per_gpu is set
    ppo_max_token_len_per_gpu: int = 18944  # token budget of one micro-batch (prompt + response, student and teacher each)
    ppo_epochs: int = 1  # passes over a rollout batch
    loss_agg_mode: str = "token-mean"  # token-mean | seq-mean-token-mean | seq-mean-token-sum | seq-mean-token-sum-norm
    clip_ratio: float = 0.2  # GRPO clip when low/high are not set
    clip_ratio_low: float | None = None  # null: clip_ratio
    clip_ratio_high: float | None = 0.28  # null: clip_ratio
    clip_ratio_c: float = 3.0  # dual clip for negative advantages
    entropy_coeff: float = 0.0  # entropy bonus
    use_kl_loss: bool = False  # penalty for leaving the policy that the run started from, on policy-gradient rows
    kl_loss_coef: float = 0.001  # its weight
    kl_loss_type: str = "low_var_kl"  # its estimator: low_var_kl (k3) | mse (k2) | abs | kl+ (k1+) | low_var_kl+ (k3+); + has the value of one and the gradient of k2, that of the KL itself


@dataclass
class ValKwargsConfig:
    n: int = 4  # responses per held-out prompt
    temperature: float = 0.6  # sampling temperature
    top_p: float = 0.95  # nucleus
    top_k: int = -1  # -1: off
    do_sample: bool = True  # false: greedy


@dataclass
class EnvironmentConfig:
    name: str = "single_turn"  # single_turn (one answer, graded) | python (tool calls, then an answer) | a class of the file
    path: str | None = None  # Python file with your own environment (docs/extending.md)
    settings: dict[str, Any] = field(default_factory=dict)  # arguments of its class; python: max_calls=4, feedback=true
    max_seconds: float = 0  # of one episode, whose last answer is graded then; 0: no limit


@dataclass
class CheckpointEngineConfig:
    backend: str = "auto"  # how weights reach engines and a remote teacher: shared_memory (of one machine) | gloo (over the network) | auto (gloo where they are not all on the driver's machine)
    timeout_s: float = 300  # seconds for which a transfer over the network may stand still


@dataclass
class RolloutConfig:
    name: str = "vllm"  # vllm | hf
    n: int = 8  # responses per prompt (the group)
    temperature: float = 1.0  # also divides the logits in every loss
    top_p: float = 1.0  # nucleus
    top_k: int = -1  # -1: off
    dtype: str = "auto"  # auto: float32 on a CPU, bfloat16 on a GPU
    tensor_model_parallel_size: int = 1  # GPUs per engine
    lora: str = "merged"  # how the engine gets an adapter: merged (added to copies of the weights) | adapter (vLLM's own LoRA, less to carry)
    replicas: int = 1  # engines; prompts are split between them
    gpu_memory_utilization: float = 0.55  # share of the GPU for weights and KV cache
    cpu_kv_cache_gb: int = 1  # KV cache on a CPU
    max_num_batched_tokens: int = 18944  # per engine step
    max_num_seqs: int = 256  # concurrent sequences
    max_model_len: int | None = None  # null: prompt + response limits
    enforce_eager: bool | None = None  # null: true on a CPU (compiling costs minutes), false on a GPU
    free_cache_engine: bool = True  # give the GPU memory back during the update
    calculate_log_probs: bool = True  # return the sampler's log-probs
    max_log_prob_diff: float | None = None  # nats; a step in which engine and trainer differ by more, on average (`rollout/log_prob_diff_mean`), stops the run; null: 0.01 in float32, 0.2 in half precision, no limit with top_p or top_k; 0: none
    ignore_eos: bool = False  # generate to the limit (benchmarks)
    max_staleness: int = 0  # 1: step n+1 is drawn while step n trains, with weights one rollout batch old; 0: in turn
    retries: int = 2  # of a response that the engine gave up; then it is masked and counted
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)  # what happens between prompt and grade
    val_kwargs: ValKwargsConfig = field(default_factory=ValKwargsConfig)  # sampling for validation
    checkpoint_engine: CheckpointEngineConfig = field(default_factory=CheckpointEngineConfig)  # the way of new weights


@dataclass
class RefConfig:
    placement: str = "colocated"  # teacher in the actor's process (colocated) or in its own worker group (remote)
    ranks: int | None = None  # of that group: processes, GPUs where there are some, that share its weights; null: as many as the actor's


@dataclass
class ActorRolloutRefConfig:
    model: ModelConfig = field(default_factory=ModelConfig)  # the policy
    actor: ActorConfig = field(default_factory=ActorConfig)  # the update
    rollout: RolloutConfig = field(default_factory=RolloutConfig)  # generation
    ref: RefConfig = field(default_factory=RefConfig)  # where the teacher lives
    nccl_timeout: float = 1800  # seconds that a rank waits for the others in a collective (also gloo's) before it counts as hung


@dataclass
class RolloutCorrectionConfig:
    rollout_is: str | None = "token"  # token: weight by p_old/p_sampler; null: off
    rollout_is_threshold: float | None = 2.0  # cap of that weight


@dataclass
class KlCtrlConfig:
    type: str = "fixed"  # only fixed
    kl_coef: float = 0.001  # what a nat costs


@dataclass
class FilterGroupsConfig:
    enable: bool = False  # draw more prompts until data.train_batch_size groups differ in `metric`; only those are trained on (DAPO)
    metric: str = "acc"  # acc (successes) | seq_reward (rewards)
    max_num_gen_batches: int = 10  # rollout batches per step at most; what there is then is trained on; 0: no limit


@dataclass
class AlgorithmConfig:
    adv_estimator: str = "grpo"  # what a reward is compared with: grpo (mean of its group) | rloo (mean of the others)
    norm_adv_by_std_in_grpo: bool = False  # divide the group's advantage by its standard deviation
    use_kl_in_reward: bool = False  # take kl_ctrl.kl_coef for each nat away from the policy that the run started from off the reward, before the advantages
    kl_penalty: str = "kl"  # its estimator: kl (k1) | abs | mse (k2) | low_var_kl (k3)
    kl_ctrl: KlCtrlConfig = field(default_factory=KlCtrlConfig)  # its price
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)  # resampling of groups without a difference
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)  # sampler mismatch


@dataclass
class OverlongBufferConfig:
    enable: bool = False  # take points off long responses, before the advantages (DAPO)
    len: int = 4096  # the last so many tokens before data.max_response_length cost more and more
    penalty_factor: float = 1.0  # what the longest response loses


@dataclass
class RewardModelConfig:
    overlong_buffer: OverlongBufferConfig = field(default_factory=OverlongBufferConfig)  # penalty for length


@dataclass
class CustomRewardFunctionConfig:
    path: str | None = None  # Python file with the function
    name: str = "compute_score"  # its name
    weights: dict[str, Any] = field(default_factory=dict)  # several functions of the file instead of one, e.g. {correct: 1, short: 0.2}: the reward is the weighted sum
    data_sources: list[str] = field(default_factory=list)  # rows it grades, by their data_source (patterns, e.g. my_task*); the others go to the built-in graders; empty: all rows
    reward_kwargs: dict[str, Any] = field(default_factory=dict)  # further arguments of every call
    max_seconds: float = 60.0  # of one call; an answer that takes longer is lost (infra_error)


@dataclass
class GradingConfig:
    backend: str = "local"  # where model-written code runs: the sandbox of this machine, a SandboxFusion-compatible service, or Modal
    service_url: str | None = None  # address of that service, e.g. http://sandbox:8080
    sandbox_level: str = "L3"  # strongest isolation to try; a machine that cannot make it gets the next (docs/grading.md)
    concurrency: int = 8  # programs at once per grader process (inline: as many as grading.workers)
    packages: list[str] = field(default_factory=lambda: ["numpy"])  # third-party packages that programs may import
    algebra_processes: int = 1  # processes per grader that compare mathematics
    workers: int = 2  # grader processes on each machine with engines (Ray actors, or threads when inline)
    cpu_seconds: float = 4.0  # CPU time of one test
    memory_mb: int = 512  # address space above the interpreter's own
    max_output_kb: int = 64  # stdout and stderr of one run
    feedback_max_chars: int = 2000  # longest feedback
    feedback_style: str = "plain"  # plain | leetcode
    feedback_template: str = "{headline}\nInput: {input}\nExpected: {expected}\nGot: {got}"  # of one wrong test, in the plain style
    public_only: bool = False  # feedback says nothing about hidden tests, which run apart from public ones
    reveal_gold: bool = False  # mathematics, multiple choice and tool calls: may the feedback hold the gold answer
    answer_tags_required: bool = False  # multiple choice: only <answer>B</answer> counts
    reasoning_parser: str = "auto"  # marks of reasoning, which is never graded: auto (of every family) | none | the name of a vLLM reasoning parser
    tool_parser: str = "auto"  # tool calls: auto (by the marks in the response) | none (JSON, Python and Action lines only) | the name of a vLLM tool parser (its format only)
    fail_weak: bool = False  # a pass of assert tests that the program had a say in (integrity: weak) fails instead of a flag
    judge_url: str | None = None  # OpenAI-compatible endpoint that grades rows of data_source judge, e.g. http://host:8000/v1
    judge_model: str | None = None  # its model
    judge_key_variable: str | None = None  # environment variable with its API key
    retries: int = 2  # of a failure of the grader itself, before the sample is masked
    max_infra_error_frac: float = 0.2  # share of a step's samples that may be masked so; more stop the run
    allow_unsafe: bool = False  # run without any isolation


@dataclass
class TrainerConfig:
    total_epochs: int = 30  # passes over the prompts
    total_training_steps: int | None = None  # null: from the epochs; total_epochs on the command line drops a YAML value of this
    n_gpus_per_node: int = 1  # actor ranks per node (processes on a CPU)
    nnodes: int = 1  # machines with actor ranks; more than 1 needs a Ray cluster (RAY_ADDRESS) and a run folder that they share
    device: str = "auto"  # auto | cpu | cuda
    seed: int = 0  # torch's generators
    logger: list[str] = field(default_factory=lambda: ["console"])  # console, wandb, trackio, tensorboard, mlflow, swanlab, file
    project_name: str = "sdpo"  # tracker project
    experiment_name: str = "run"  # tracker run and folder name
    group_name: str | None = None  # tracker group
    default_local_dir: str = "runs/${trainer.project_name}/${trainer.experiment_name}"  # run folder: logs, samples, checkpoints, report
    val_before_train: bool = True  # validate the initial weights
    val_only: bool = False  # validate and stop
    val_success_threshold: float = 1.0  # reward from which a held-out response is right, whatever the training calls a success
    test_freq: int = 10  # steps between validations, and at the end; -1: only at the end; 0: never
    file_wait_s: float = 60  # seconds after which a file of another machine that is not seen counts as missing
    save_freq: int = -1  # steps between checkpoints, and at the end; -1: only at the end; 0: never
    max_actor_ckpt_to_keep: int | None = None  # null or -1: all
    resume_mode: str = "auto"  # auto: newest complete checkpoint in the run folder | disable | resume_path
    resume_from_path: str | None = None  # a step folder, with resume_mode=resume_path
    log_samples: int = 64  # samples written to samples.jsonl per step; -1: all
    worker_logs: bool = False  # show the output of the worker processes in the console
    export_hf: bool = True  # write the final weights as a Hugging Face folder, model/, and those of the best step, model_best/
    export_dtype: str = "auto"  # of those folders: auto (each tensor as in the model that was trained) | float32 | bfloat16 | float16
    best_metric: str | None = "val/avg@n"  # whose highest value makes the best step (n: rollout.val_kwargs.n): val/reward, val/pass@k, val/SOURCE/avg@n, ...; null: no model_best/


@dataclass
class RayInitConfig:
    num_cpus: int | None = None  # cores of a machine that the processes of a run share; null: all it may use (affinity, a container's share). OMP_NUM_THREADS in the environment wins


@dataclass
class RayKwargsConfig:
    ray_init: RayInitConfig = field(default_factory=RayInitConfig)  # cores


@dataclass
class Config:
    data: DataConfig = field(default_factory=DataConfig)  # problems and lengths
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)  # policy, update, generation, teacher
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)  # advantages and corrections
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)  # what is taken off a reward
    custom_reward_function: CustomRewardFunctionConfig = field(default_factory=CustomRewardFunctionConfig)  # your own grader
    grading: GradingConfig = field(default_factory=GradingConfig)  # sandbox and feedback
    trainer: TrainerConfig = field(default_factory=TrainerConfig)  # length, machines, log, checkpoints
    ray_kwargs: RayKwargsConfig = field(default_factory=RayKwargsConfig)  # cores of the processes, also with cluster=inline
    cluster: str = "ray"  # ray | inline (one process, for a debugger and for tests)
    vars: dict[str, Any] = field(default_factory=dict)  # free names for `${vars.name}` in YAML and on the command line

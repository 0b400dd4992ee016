//! What other programs call keys and values, and what they are called here.

/// What other programs call keys, and what they are called here, by their whole paths.
const KEYS: [(&str, &str); 94] = [
    ("lr", "optimizer.learning_rate"),
    ("peak_lr", "optimizer.learning_rate"),
    ("max_grad_norm", "optimizer.clip"),
    ("grad_clip", "optimizer.clip"),
    ("gradient_clipping", "optimizer.clip"),
    ("r", "lora.rank"),
    ("lora_r", "lora.rank"),
    ("lora_alpha", "lora.alpha"),
    ("lora_dropout", "lora.dropout"),
    ("lora_target_modules", "lora.targets"),
    ("target_modules", "lora.targets"),
    ("modules_to_save", "lora.train"),
    ("use_rslora", "lora.rslora"),
    ("epoch", "schedule.steps"),
    ("epochs", "schedule.steps"),
    ("num_train_epochs", "schedule.steps"),
    ("num_epochs", "schedule.steps"),
    ("max_steps", "schedule.steps"),
    ("num_steps", "schedule.steps"),
    ("train_steps", "schedule.steps"),
    ("warmup_steps", "schedule.warmup"),
    ("warmup_ratio", "schedule.warmup"),
    ("lr_scheduler_type", "schedule.decay"),
    ("min_lr", "schedule.floor"),
    ("min_lr_ratio", "schedule.floor"),
    ("adam_beta1", "optimizer.betas"),
    ("adam_beta2", "optimizer.betas"),
    ("adam_epsilon", "optimizer.epsilon"),
    ("optim", "optimizer.name"),
    ("gradient_accumulation_steps", "memory.micro_batch"),
    ("micro_batch_size", "memory.micro_batch"),
    ("per_device_train_batch_size", "memory.micro_batch"),
    ("recompute_granularity", "memory.recompute"),
    ("gradient_checkpointing", "memory.recompute"),
    ("activation_checkpointing", "memory.recompute"),
    ("batch_size", "data.batch"),
    ("global_batch_size", "data.batch"),
    ("train_batch_size", "data.batch"),
    ("seq_len", "data.tokens"),
    ("seq_length", "data.tokens"),
    ("max_seq_len", "data.tokens"),
    ("max_seq_length", "data.tokens"),
    ("sequence_len", "data.tokens"),
    ("sequence_length", "data.tokens"),
    ("max_length", "data.tokens"),
    ("context_length", "data.tokens"),
    ("block_size", "data.tokens"),
    ("cutoff_len", "data.tokens"),
    ("packing", "data.pack"),
    ("sample_packing", "data.pack"),
    ("val_set_size", "data.evaluate"),
    ("val_size", "data.evaluate"),
    ("dataset", "data.path"),
    ("datasets", "data.path"),
    ("output_dir", "output"),
    ("model_name_or_path", "model.path"),
    ("base_model", "model.path"),
    ("torch_dtype", "model.dtype"),
    ("bf16", "model.dtype"),
    ("fp16", "model.dtype"),
    ("context", "mesh.sequence"),
    ("context_parallel", "mesh.sequence"),
    ("context_parallel_size", "mesh.sequence"),
    ("context_parallel_degree", "mesh.sequence"),
    ("ulysses_sequence_parallel_size", "mesh.sequence"),
    ("cp", "mesh.sequence"),
    ("cp_size", "mesh.sequence"),
    ("sequence_parallel_size", "mesh.sequence"),
    ("sp_size", "mesh.sequence"),
    ("tensor_model_parallel_size", "mesh.tensor"),
    ("tensor_parallel_size", "mesh.tensor"),
    ("tp", "mesh.tensor"),
    ("tp_size", "mesh.tensor"),
    ("data_parallel_size", "mesh.data"),
    ("dp", "mesh.data"),
    ("dp_size", "mesh.data"),
    ("zero", "parallel.state"),
    ("zero_stage", "parallel.state"),
    ("fsdp", "parallel.state"),
    ("deepspeed", "parallel.state"),
    ("use_distributed_optimizer", "parallel.state"),
    ("hsdp", "parallel.state_axes"),
    ("sliding_window", "attention.window"),
    ("attn_implementation", "attention.kernel"),
    ("logging_steps", "every.log"),
    ("log_interval", "every.log"),
    ("save_steps", "every.checkpoint"),
    ("save_interval", "every.checkpoint"),
    ("eval_steps", "every.evaluate"),
    ("eval_interval", "every.evaluate"),
    ("eval_on_start", "every.evaluate_on_start"),
    ("val_before_train", "every.evaluate_on_start"),
    ("save_total_limit", "keep"),
    ("random_seed", "seed"),
];

/// What a key of another program is called here, by its path; `None`: nobody calls one so.
pub fn elsewhere(key: &str) -> Option<&'static str> {
    KEYS.iter().find(|(other, _)| *other == key).map(|(_, own)| *own)
}

/// Keys of other programs that count in other units than ours, and how to convert them.
const CONVERSIONS: [(&str, &str); 10] = [
    ("epoch", EPOCHS),
    ("epochs", EPOCHS),
    ("num_epochs", EPOCHS),
    ("num_train_epochs", EPOCHS),
    ("warmup_ratio", "`schedule.warmup` counts steps: ratio × `schedule.steps`"),
    ("min_lr", "`schedule.floor` is a share of `optimizer.learning_rate`"),
    (
        "gradient_accumulation_steps",
        "`memory.micro_batch` is `data.batch` / (`mesh.data` × accumulation steps)",
    ),
    ("val_set_size", HELD_OUT),
    ("val_size", HELD_OUT),
    ("modules_to_save", "`lora.train` names what is trained in full beside the adapters"),
];
const HELD_OUT: &str = "`data.evaluate` counts sequences: share × sequences of the data";
const EPOCHS: &str = "`schedule.steps` counts steps: epochs × sequences of the data / `data.batch`";

/// How to convert the value of a key of another program; `None`: it has the units of ours.
pub fn conversion(key: &str) -> Option<&'static str> {
    CONVERSIONS.iter().find(|(other, _)| *other == key).map(|(_, how)| *how)
}

/// What other programs call values, and what they are called here.
const VALUES: [(&str, &str); 16] = [
    ("bfloat16", "bf16"),
    ("fp16", "f16"),
    ("float16", "f16"),
    ("fp32", "f32"),
    ("float32", "f32"),
    ("adamw_torch", "adamw"),
    ("full", "layer"),
    ("true", "layer"),
    ("fsdp", "zero3"),
    ("1", "zero1"),
    ("2", "zero2"),
    ("3", "zero3"),
    ("cos", "cosine"),
    ("true", "strict"),
    ("needles", "needle"),
    ("ntk-aware", "ntk"),
];

/// The word of `words` that other programs call `text`.
pub(crate) fn value_elsewhere<'a>(text: &str, words: &[&'a str]) -> Option<&'a str> {
    let text = text.to_lowercase();
    let mut own = VALUES.iter().filter(|(other, _)| *other == text).map(|(_, own)| own);
    own.find_map(|own| words.iter().copied().find(|word| word == own))
}

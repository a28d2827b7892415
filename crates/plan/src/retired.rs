//! Names of older Python trainers that have no meaning here. Each has one answer: what replaces it, or why nothing does.
//!
//! As a flag, such a name is refused with its answer. As a key of a config file it is ignored, with the answer as a warning,
//! so that an old file still works.

use crate::setting::{SETTINGS, Setting};

/// Names with the same answer.
#[derive(Debug)]
pub struct Retired {
    /// The names, in snake case; as flags with `-` for `_`. A name with a section is retired in that section only.
    pub names: &'static [&'static str],
    /// What replaces it, or why nothing does: the end of a sentence. Settings are written as flags.
    pub instead: &'static str,
}

impl Retired {
    /// The retired flag `name`, without dashes.
    pub fn of_flag(name: &str) -> Option<&'static Retired> {
        RETIRED.iter().find(|retired| retired.flags().any(|flag| flag == name))
    }

    /// The retired key `section.key` of a config file.
    pub fn of_key(section: &str, key: &str) -> Option<&'static Retired> {
        let is = |name: &&str| match name.split_once('.') {
            Some((own_section, name)) => own_section == section && name == key,
            None => *name == key,
        };
        RETIRED.iter().find(|retired| retired.names.iter().any(&is))
    }

    /// Its flags, without dashes.
    pub fn flags(&self) -> impl Iterator<Item = String> {
        self.names.iter().filter(|name| !name.contains('.')).map(|name| name.replace('_', "-"))
    }

    /// The answer for a config file: `--num-workers` is `data.num_workers` there.
    pub fn instead_in_config(&self) -> String {
        let mut text = self.instead.to_owned();
        // Longer names first, so that none is replaced inside another.
        let mut settings: Vec<&Setting> = SETTINGS.iter().collect();
        settings.sort_by_key(|setting| std::cmp::Reverse(setting.flag.len()));
        for Setting { flag, section, key, .. } in settings {
            text = text.replace(&format!("--{flag}"), &format!("{section}.{key}"));
        }
        text
    }
}

/// The table of all retired names.
pub static RETIRED: &[Retired] = &[
    // Loading.
    Retired {
        names: &["use_tf_native_loading", "tf_native_loading"],
        instead: "decoding always runs on native threads (--num-workers)",
    },
    Retired {
        names: &["dataloader_workers", "dataloader_num_workers", "loader_workers", "num_eval_loader_workers"],
        instead: "--num-workers is the number of decode threads",
    },
    Retired {
        names: &["prefetch_to_gpu", "no_prefetch_to_gpu", "enhanced_gpu_prefetch"],
        instead: "batches are always prefetched to the device (--prefetch-buffer-size)",
    },
    Retired { names: &["prefetch_factor"], instead: "--buffer-size is the number of prefetched batches" },
    Retired { names: &["enhanced_gpu_pipeline"], instead: "every mode overlaps data and training (--mode)" },
    Retired { names: &["optimize_cpu_gpu_overlap"], instead: "data and training always overlap" },
    Retired {
        names: &["auto_tune_performance", "auto_tune", "autotune"],
        instead: "values you do not give are computed and tuned; `tandem plan` shows them",
    },
    Retired {
        names: &["shuffle_buffer_size", "shuffle_buffer_multiplier", "batch_group_size", "shuffle"],
        instead: "the data order depends on the seed only (--seed)",
    },
    Retired { names: &["pin_memory"], instead: "uploads always use pinned memory" },
    Retired { names: &["persistent_workers"], instead: "decode threads live as long as the run (--num-workers)" },
    Retired {
        names: &[
            "cache_dir",
            "cache_verification",
            "cache_mode",
            "preprocessing_mode",
            "enable_memory_mapping",
            "auto_rebuild_token_cache",
            "auto_rebuild_mel_cache",
        ],
        instead: "features are computed on the data device in every epoch; --cache keeps decoded audio between epochs",
    },
    // Compiling.
    Retired {
        names: &[
            "xla",
            "enable_xla",
            "enable_xla_compilation",
            "enable_graph_mode",
            "enable_tensorrt",
            "jit_compile",
            "compile",
            "torch_compile",
        ],
        instead: "every shape is compiled before the first step (--enable-static-shapes)",
    },
    Retired {
        names: &["enable_eager_debug", "run_eagerly"],
        instead: "nothing runs eagerly; `tandem validate` and `tandem profile` show what a run does",
    },
    Retired {
        names: &["cudnn_benchmark", "cudnn_enable", "cudnn_deterministic"],
        instead: "cuDNN is not used, and a run on a card is reproducible to the bit",
    },
    // Memory.
    Retired {
        names: &[
            "gpu_memory_growth",
            "memory_growth",
            "enable_memory_growth",
            "gpu_memory_fraction",
            "max_memory_fraction",
            "enable_memory_cleanup",
        ],
        instead: "memory is reserved once, at startup; --enable-memory-isolation limits it",
    },
    Retired {
        names: &["use_gradient_checkpointing", "enable_gradient_checkpointing", "gradient_checkpointing"],
        instead: "activations are not recomputed; --grad-accum makes them smaller",
    },
    Retired {
        names: &["use_memory_efficient_attention", "flash_attention"],
        instead: "attention never stores its matrix (flash attention)",
    },
    Retired {
        names: &["max_attention_sequence_length"],
        instead: "--max-text-length and --max-mel-frames limit the lengths; attention has no limit of its own",
    },
    // Precision.
    Retired {
        names: &["mixed_precision_policy", "amp", "use_amp", "fp16", "bf16", "half", "precision", "use_grad_scaler"],
        instead: "--mixed-precision computes in bf16, which needs no loss scaling; --no-mixed-precision in f32",
    },
    Retired {
        names: &["tf32", "allow_tf32", "use_tf32"],
        instead: "f32 is computed as f32; --mixed-precision computes in bf16",
    },
    // Devices.
    Retired {
        names: &[
            "use_multi_gpu",
            "multi_gpu",
            "num_gpus",
            "distribute",
            "distributed",
            "distribution_strategy",
            "strategy",
            "ddp",
            "local_rank",
            "world_size",
        ],
        instead: "--gpus all, or --gpus 0,1, trains on several GPUs; launchers such as torchrun start ranks by themselves",
    },
    Retired {
        names: &["use_cuda", "use_gpu", "device", "visible_gpus"],
        instead: "--gpu 0 names the card, and --mode cpu uses none",
    },
    // Data.
    Retired {
        names: &["download_ljspeech", "auto_download_ljspeech", "dataset_name", "datasets"],
        instead: "nothing is downloaded; --train-data names the data",
    },
    Retired {
        names: &["metadata_train_file", "metadata_eval_file", "wavs_train_dir", "wavs_eval_dir"],
        instead: "--train-data and --val-data take metadata files, with the recordings in wavs/ beside them",
    },
    Retired {
        names: &["train_split", "val_split", "eval_split_size"],
        instead: "without --val-data, a tenth of the data is for validation",
    },
    Retired {
        names: &[
            "train_subset_size",
            "train_subset_fraction",
            "eval_subset_fraction",
            "train_frac",
            "eval_frac",
            "subset",
            "subset_seed",
        ],
        instead: "--exclude-ids leaves utterances out, and --max-steps ends a run earlier",
    },
    Retired {
        names: &["enable_multispeaker", "max_speakers", "use_speaker_embedding"],
        instead: "speakers come from the data, or from its ids with --speaker-id-pattern",
    },
    Retired {
        names: &["languages", "supported_languages", "enable_multilingual", "language_detection_method"],
        instead: "rows name their language, and --lang is for those that do not",
    },
    Retired {
        names: &[
            "text_cleaners",
            "text_cleaner",
            "tokenizer_type",
            "tokenizer_model",
            "text_vocab_size",
            "use_optimized_nllb_vocab",
            "optimized_vocab_size",
            "vocab_optimization_method",
            "enable_weight_tying",
            "shared_embedding_languages",
            "add_blank",
            "use_phonemes",
            "phoneme_language",
            "enable_phone_normalization",
        ],
        instead: "the language of a row decides how its text is read (--lang)",
    },
    Retired {
        names: &["max_text_tokens", "max_text_len", "model.max_text_length"],
        instead: "--max-text-length limits texts",
    },
    Retired {
        names: &["max_audio_length", "max_audio_len", "min_audio_length", "min_audio_len"],
        instead: "--max-mel-frames limits recordings, in frames of 256 samples (86 a second)",
    },
    Retired {
        names: &["sample_rate", "n_mels", "n_fft", "hop_length", "win_length", "fft_size", "num_mels"],
        instead: "features are fixed: 80 mels at 22050 Hz, windows of 1024 samples, a frame every 256; recordings are resampled",
    },
    Retired {
        names: &[
            "trim_silence",
            "do_trim_silence",
            "normalize_audio",
            "enable_loudness_normalization",
            "target_loudness_lufs",
            "enable_vad",
            "enable_pitch_shift",
            "pitch_shift_range",
            "enable_noise_mixing",
            "noise_mixing_probability",
            "noise_mixing_snr_range",
        ],
        instead: "recordings are used as they are; `tandem corpus check` reports those that need work",
    },
    // The model.
    Retired {
        names: &[
            "text_encoder_dim",
            "text_encoder_layers",
            "text_encoder_heads",
            "audio_encoder_dim",
            "audio_encoder_layers",
            "audio_encoder_heads",
            "decoder_dim",
            "decoder_layers",
            "decoder_heads",
            "speaker_embedding_dim",
            "voice_feature_dim",
            "voice_conditioning_layers",
            "model_args",
        ],
        instead: "--model-size chooses all sizes of the model",
    },
    Retired {
        names: &[
            "decoder_strategy",
            "use_duration_predictor",
            "diffusion_timesteps",
            "diffusion_beta_schedule",
            "enable_diffusion_inference",
        ],
        instead: "there is one decoder, which is not autoregressive and has a duration predictor",
    },
    Retired {
        names: &[
            "vocoder_type",
            "vocoder_upsample_rates",
            "vocoder_upsample_kernel_sizes",
            "vocoder_resblock_kernel_sizes",
            "vocoder_resblock_dilation_sizes",
            "vocoder_initial_channel",
        ],
        instead: "waveforms are made with Griffin-Lim",
    },
    Retired {
        names: &[
            "use_pretrained_speaker_encoder",
            "disable_pretrained_speaker_encoder",
            "pretrained_speaker_encoder_path",
            "speaker_encoder_path",
            "speaker_encoder_type",
            "freeze_speaker_encoder",
            "unfreeze_speaker_encoder",
            "contrastive_loss_temperature",
            "contrastive_loss_margin",
            "use_voice_conditioning",
            "voice_similarity_threshold",
            "enable_voice_adaptation",
            "voice_encoder_dropout",
            "enable_speaker_interpolation",
            "voice_cloning_temperature",
            "voice_conditioning_strength",
            "max_reference_audio_length",
            "min_reference_audio_length",
            "reference_audio_length",
            "enable_voice_denoising",
        ],
        instead: "the voice encoder is part of the model and is trained with it",
    },
    Retired {
        names: &[
            "enable_gst",
            "use_gst",
            "gst_num_style_tokens",
            "gst_style_token_dim",
            "gst_style_embedding_dim",
            "gst_num_heads",
            "gst_reference_encoder_dim",
            "gst_enable_emotion_control",
            "gst_enable_speaking_rate_control",
            "gst_style_loss_weight",
        ],
        instead: "there are no style tokens; `tandem synthesize --reference` takes the voice from a recording",
    },
    // Training.
    Retired {
        names: &[
            "optimizer",
            "optimizer_params",
            "beta1",
            "beta2",
            "eps",
            "weight_decay",
            "gradient_clip_norm",
            "gradient_norm_threshold",
            "grad_clip",
            "scheduler",
            "scheduler_params",
            "lr_scheduler",
            "lr_scheduler_params",
            "warmup_steps",
            "min_learning_rate",
            "use_warmup_cosine_schedule",
            "cosine_restarts",
            "apply_fast_convergence",
        ],
        instead: "--optimization-level chooses optimizer and schedule; `tandem plan` prints their values",
    },
    Retired {
        names: &[
            "simple_loss",
            "use_simple_loss",
            "mel_loss_weight",
            "kl_loss_weight",
            "duration_loss_weight",
            "attention_loss_weight",
            "pitch_loss_weight",
            "energy_loss_weight",
            "prosody_pitch_loss_weight",
            "prosody_energy_loss_weight",
            "prosody_matching_loss_weight",
            "speaking_rate_loss_weight",
            "spectral_consistency_loss_weight",
            "speaker_classification_loss_weight",
            "voice_cloning_loss_weight",
            "voice_similarity_loss_weight",
            "voice_reconstruction_loss_weight",
            "max_duration_frames",
            "auxiliary_head_regularization",
            "use_adaptive_loss_weights",
            "adaptive_weight_max_change_percent",
            "adaptive_weight_cooling_period",
            "adaptive_weight_min_stable_steps",
            "adaptive_weight_min_warmup_steps",
            "adaptive_weight_variance_threshold",
            "loss_smoothing_factor",
            "loss_alert_threshold",
            "max_loss_spike_threshold",
            "use_label_smoothing",
            "mel_label_smoothing",
            "stop_label_smoothing",
            "stop_token_positive_weight",
            "use_huber_loss",
            "huber_delta",
        ],
        instead: "the losses and their weights are fixed",
    },
    Retired {
        names: &["early_stopping_patience", "early_stopping_min_delta"],
        instead: "the best checkpoint is always kept; Ctrl-C, --max-steps or --epochs end a run",
    },
    Retired {
        names: &["save_n_checkpoints", "save_checkpoints", "save_all_best", "save_best_after"],
        instead: "the last three checkpoints and the best are kept (--checkpoint-every)",
    },
    Retired { names: &["resume_from", "restore_path", "continue_path"], instead: "--resume takes a checkpoint" },
    Retired { names: &["eval_batch_size"], instead: "validation has the shapes of training (--batch-size)" },
    Retired {
        names: &[
            "enable_evaluation",
            "enable_automatic_evaluation",
            "evaluation_interval",
            "run_eval",
            "val_step",
            "enable_text2audio_eval",
            "text2audio_interval_steps",
            "text2audio_output_dir",
            "text2audio_texts",
            "text2audio_speaker_id",
            "text2audio_log_tensorboard",
            "test_sentences",
        ],
        instead: "every epoch is validated, and validation sentences are synthesised after a checkpoint",
    },
    Retired {
        names: &[
            "log_step",
            "print_step",
            "plot_step",
            "run_name",
            "project_name",
            "spectrogram_log_interval",
            "spectrogram_log_num_examples",
            "spectrogram_log_example_index",
            "spectrogram_reference_subset",
            "spectrogram_reference_index",
            "use_wandb",
            "wandb_project",
        ],
        instead: "the run log has every step, and --tensorboard-dir and --prometheus export it",
    },
    Retired {
        names: &["create_optimized_model", "lightweight_config", "compression_target"],
        instead: "`tandem synthesize` uses a checkpoint as it is; --model-size nano is the smallest model",
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_is_retired_once_and_is_no_setting() {
        let mut seen = BTreeSet::new();
        for retired in RETIRED {
            assert!(!retired.instead.is_empty() && !retired.instead.ends_with('.'), "{retired:?}");
            for name in retired.names {
                assert!(seen.insert(name), "{name} is retired twice");
                assert!(
                    name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.".contains(c)),
                    "{name}"
                );
            }
            for flag in retired.flags() {
                assert!(Setting::of_flag(&flag).is_none(), "--{flag} is a setting");
                assert!(Setting::of_key(&flag.replace('-', "_")).is_none(), "{flag} is a setting");
                assert_eq!(Retired::of_flag(&flag).map(|found| found.instead), Some(retired.instead));
                assert_eq!(Retired::of_key("data", &flag.replace('-', "_")).map(|r| r.instead), Some(retired.instead));
            }
        }
    }

    #[test]
    fn flags_in_answers_are_settings() {
        let words = RETIRED.iter().flat_map(|retired| retired.instead.split([' ', '(', ')', ',', ';', '`']));
        // `--reference` is a flag of `synthesize`.
        for flag in words.filter_map(|word| word.strip_prefix("--")).filter(|flag| *flag != "reference") {
            assert!(Setting::of_flag(flag).is_some(), "--{flag}");
        }
        let example = Retired::of_flag("use-tf-native-loading").unwrap();
        assert_eq!(example.instead_in_config(), "decoding always runs on native threads (data.num_workers)");
    }

    #[test]
    fn a_name_with_a_section_is_retired_there_only() {
        assert!(Retired::of_key("model", "max_text_length").is_some());
        assert!(Retired::of_key("data", "max_text_length").is_none());
        assert!(Retired::of_flag("max-text-length").is_none());
        assert!(SETTINGS.iter().any(|setting| setting.key == "max_text_length"));
    }

    /// The flags of a trainer that many come from, without those that are settings or aliases here.
    #[test]
    fn old_flags_without_a_meaning_have_an_answer() {
        let names = "download-ljspeech prefetch-to-gpu no-prefetch-to-gpu decoder-strategy vocoder-type \
                     apply-fast-convergence enable-evaluation evaluation-interval create-optimized-model \
                     lightweight-config compression-target use-pretrained-speaker-encoder \
                     disable-pretrained-speaker-encoder speaker-encoder-path speaker-encoder-type \
                     freeze-speaker-encoder unfreeze-speaker-encoder contrastive-loss-temperature \
                     contrastive-loss-margin enable-gst gst-num-style-tokens gst-style-token-dim \
                     gst-style-embedding-dim gst-num-heads gst-style-loss-weight simple-loss enable-eager-debug \
                     gpu-memory-growth xla enable-xla mixed-precision-policy tf32 use-tf-native-loading use-multi-gpu \
                     distribute strategy num-gpus pin-memory persistent-workers prefetch-factor dataloader-workers \
                     cudnn-benchmark compile torch-compile ddp local-rank fp16 amp bf16 autotune auto-tune-performance \
                     shuffle-buffer-size cache-dir preprocessing-mode max-attention-sequence-length \
                     use-gradient-checkpointing";
        for name in names.split_whitespace() {
            assert!(Retired::of_flag(name).is_some(), "--{name}");
        }
    }
}

//! The plan: flags, config file and hardware, resolved once into the numbers of a run.
//!
//! Everything here is a pure function of the user's [`Settings`], the [`Hardware`], the memory of the model
//! ([`ModelCatalog`]) and the lengths of the corpus ([`CorpusFacts`]). The result is a [`Plan`] that fits, or a [`Refusal`]
//! with what was found, what is needed, and what to type instead. Every suggestion is solved before it is printed.
//!
//! ```
//! use tandem_device::DriverCost;
//! use tandem_plan::speech::SpeechModels;
//! use tandem_plan::{Hardware, HostFacts, Mode, Plan, Settings};
//!
//! let models = SpeechModels::of(None);
//! let host = HostFacts { available_bytes: 32 << 30, limited_by: None, cores: 8 };
//! let machine = Hardware::simulated(2, 24 << 30, &DriverCost::table(), host);
//! let settings = Settings::new().with(&[("data-gpu", "0"), ("model-gpu", "1")])?;
//! let plan = Plan::solve(&settings, &machine, &models, None)?;
//! assert_eq!(plan.mode, Mode::Multi);
//! assert!(plan.model.planned_bytes <= plan.model.limit_bytes);
//!
//! let refusal = Plan::solve(&settings, &Hardware::without_cards(host), &models, None).unwrap_err();
//! assert!(refusal.message.contains("Multi-GPU requires at least 2 GPUs, found 0"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// The user's settings.
pub mod setting;
mod retired;
mod gpu_name;
mod gpu_list;
mod source_names;
mod columns;
mod value;
mod settings;
pub mod config;

// The hardware, and where the roles go.
mod hardware;
mod visible_cards;
mod request;
mod placement;
mod transfer;
mod arithmetic;
mod numa;

// What has to fit: shapes, slots, the model.
mod corpus;
mod slots;
mod rank_share;
mod training;
mod model_memory;
mod custom_model;
pub mod speech;

// Memory sums, limits, and the plan.
mod memory;
mod free_memory;
mod limits;
mod cache;
mod disk;
mod plan;
mod solve;

// Refusals, suggestions and advice.
mod refusal;
mod suggest;
mod advice;
mod recommend;

// Output.
mod show;
mod json;
mod print_config;
mod startup;

#[cfg(test)]
mod fixture;

pub use arithmetic::{ArithmeticOrigin, ArithmeticPlan};
pub use cache::{AUDIO_CACHE, CachePlan};
pub use columns::parse_columns;
pub use corpus::{CorpusFacts, CorpusPlan, text_settings, training_set_options, vocabulary};
pub use custom_model::{CustomModel, Models};
pub use gpu_list::GpuList;
pub use gpu_name::GpuName;
pub use hardware::{CardFacts, Hardware, HostFacts, RunFolderFacts};
pub use json::{plan_json, refusal_json};
pub use model_memory::{ModelCatalog, ModelChoice, ModelMemory, PlanLine, ProgramKind};
pub use placement::{Mode, PLACEMENT, Placement, Precision, num_ranks};
pub use plan::{Level, Plan, RolePlan, Sources};
pub use print_config::print_config;
pub use recommend::{Fit, Recommendation, recommend, show_recommendations};
pub use refusal::{Demand, Reason, Refusal, Suggestion};
pub use retired::{RETIRED, Retired};
pub use settings::{Given, Origin, SettingError, Settings};
pub use show::{show_gpus, show_plan, show_short};
pub use source_names::shown_source;
pub use startup::{StartupPhase, buffer_line, startup_lines};
pub use tandem_text::nearest;
pub use training::TrainingSettings;
pub use transfer::{TransferPlan, TriedRoute};
pub use value::{Limit, SettingValue, quoted};
pub use visible_cards::explain_visibility;

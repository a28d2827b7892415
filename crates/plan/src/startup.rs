//! The start-up messages, by the phase after which each is true. Nothing here prints: the caller asks for the lines of a phase
//! once it is reached.

use std::time::Duration;

use tandem_device::bytes::mib_ceil;
use tandem_events::Role;

use crate::placement::Mode;
use crate::plan::Plan;

/// Phases of the start-up, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupPhase {
    /// Device set-up begins.
    Configuring,
    /// Only the devices of the plan can be opened from now on.
    DevicesRestricted,
    /// Memory reservation begins.
    Reserving,
    /// The memory of this role is reserved, and its limit is in force.
    Reserved(Role),
    /// Both roles are set up.
    Configured,
    /// The data side is ready to run.
    PipelineReady,
    /// The device of the model is fixed.
    ModelPlaced,
    /// The model is about to be created.
    CreatingModel,
    /// The wait for the data buffer to fill begins.
    Waiting,
    /// The first step is about to run.
    Starting,
}

impl StartupPhase {
    /// All phases, in order.
    pub const ALL: [StartupPhase; 11] = [
        StartupPhase::Configuring,
        StartupPhase::DevicesRestricted,
        StartupPhase::Reserving,
        StartupPhase::Reserved(Role::Data),
        StartupPhase::Reserved(Role::Model),
        StartupPhase::Configured,
        StartupPhase::PipelineReady,
        StartupPhase::ModelPlaced,
        StartupPhase::CreatingModel,
        StartupPhase::Waiting,
        StartupPhase::Starting,
    ];
}

/// The lines to print once `phase` is reached.
pub fn startup_lines(plan: &Plan, phase: StartupPhase) -> Vec<String> {
    match phase {
        StartupPhase::Configuring => configuring(plan),
        StartupPhase::DevicesRestricted => visible_devices(plan).into_iter().collect(),
        StartupPhase::Reserving if plan.isolated => vec!["🎯 Setting up GPU Memory Isolation...".to_owned()],
        StartupPhase::Reserving => Vec::new(),
        StartupPhase::Reserved(role) => reserved(plan, role),
        StartupPhase::Configured => configured(plan),
        StartupPhase::PipelineReady => pipeline(plan),
        StartupPhase::ModelPlaced => model_placed(plan),
        StartupPhase::CreatingModel => vec![format!("Creating model on device: {}", model_device(plan))],
        StartupPhase::Waiting => vec![format!(
            "🕐 {}: Waiting up to {:.1}s for data pipeline to warm up...",
            plan.mode, plan.start_delay_seconds
        )],
        StartupPhase::Starting => vec!["✅ Model training starting now".to_owned()],
    }
}

/// How the wait for the data buffer ended: it is full, or `--model-start-delay` has passed.
pub fn buffer_line(ready: usize, of: usize, waited: Duration) -> String {
    let why = if ready < of { "; --model-start-delay allows no more" } else { "" };
    format!("   Data buffer: {ready}/{of} batches ready after {:.1} s{why}", waited.as_secs_f64())
}

/// Roles as devices: data is 0, model is 1, whatever cards they are on. In single mode both are 0.
fn model_device(plan: &Plan) -> &'static str {
    match plan.mode {
        Mode::Cpu => "/CPU:0",
        Mode::Single => "/GPU:0",
        Mode::Multi | Mode::SharedGpu => "/GPU:1",
    }
}

fn data_device(plan: &Plan) -> &'static str {
    if plan.mode == Mode::Cpu { "/CPU:0" } else { "/GPU:0" }
}

fn cards(plan: &Plan) -> Option<(usize, usize)> {
    plan.data.card.zip(plan.model.card)
}

fn configuring(plan: &Plan) -> Vec<String> {
    match (plan.mode, cards(plan)) {
        (Mode::Multi, Some((data, model))) => vec![
            "🎯 Configuring Multi-GPU Mode...".to_owned(),
            format!("   Data Processing GPU: {data}"),
            format!("   Model Training GPU: {model}"),
        ],
        (Mode::SharedGpu, Some((card, _))) => {
            vec!["🎯 Configuring Shared-GPU Mode...".to_owned(), format!("   Single card, two partitions: GPU {card}")]
        }
        _ => Vec::new(),
    }
}

fn visible_devices(plan: &Plan) -> Option<String> {
    match (plan.mode, cards(plan)?) {
        (Mode::Multi, (data, model)) => Some(format!("   Set visible devices: GPU {data} and GPU {model}")),
        (Mode::SharedGpu, (card, _)) => Some(format!("   Set visible devices: GPU {card}")),
        (Mode::Cpu | Mode::Single, _) => None,
    }
}

fn reserved(plan: &Plan, role: Role) -> Vec<String> {
    let part = if plan.mode == Mode::SharedGpu { "partition" } else { "GPU" };
    let role_plan = plan.role(role);
    // With isolation this is the limit, rounded down to whole granules.
    let (mb, limit) = (mib_ceil(role_plan.reserved_bytes()), role_plan.limit_mb());
    let device = role_plan.card.map(|card| format!("on GPU {card} ")).unwrap_or_default();
    match plan.mode {
        Mode::Cpu | Mode::Single => Vec::new(),
        _ if plan.isolated => vec![
            format!("   Reserved {mb} MB for {role} {part}"),
            format!("   Limit of the {role} role {device}is {limit} MB ({})", role_plan.strength),
        ],
        _ => vec![format!("   Reserved {mb} MB for {role} {part}")],
    }
}

fn configured(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    if plan.isolated {
        lines.push("✅ GPU Memory Isolation configured successfully".to_owned());
    }
    match plan.mode {
        Mode::Multi => lines.push("✅ Multi-GPU configuration completed successfully".to_owned()),
        Mode::SharedGpu => lines.push("✅ Shared-GPU configuration completed successfully".to_owned()),
        Mode::Cpu | Mode::Single => {}
    }
    lines
}

fn pipeline(plan: &Plan) -> Vec<String> {
    let mut lines = vec![format!("🚀 Intelligent GPU Pipeline: {}", plan.mode)];
    match (plan.mode, cards(plan)) {
        (Mode::Multi, Some((data, model))) => {
            lines.push(format!("   - Data Processing GPU: {data}"));
            lines.push(format!("   - Model Training GPU: {model}"));
        }
        (Mode::SharedGpu, Some((card, _))) => lines.push(format!("   - Single card, two partitions: GPU {card}")),
        _ => {
            lines.push(format!("   - Buffer Size: {}", plan.feed.data_slots));
            lines.push("   - Smart Prefetching: Enabled".to_owned());
        }
    }
    lines.push(format!("   - Prefetching to {} with buffer_size={}", data_device(plan), plan.feed.data_slots));
    lines
}

fn model_placed(plan: &Plan) -> Vec<String> {
    let (Mode::Multi | Mode::SharedGpu, Some((_, card))) = (plan.mode, cards(plan)) else { return Vec::new() };
    let uuid = plan.model.uuid.as_deref().unwrap_or_default();
    vec![
        format!("🎯 {}: Model will be placed on {}", plan.mode, model_device(plan)),
        format!("   (Original GPU {card} is now mapped to GPU:1) {uuid}"),
    ]
}

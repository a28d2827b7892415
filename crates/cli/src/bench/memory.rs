//! `tandem bench memory`.

use serde_json::{Value, json};
use tandem_bench::benchmarks::memory::{self, MemoryReport, RoleReport, STEP_MB, Smallest};
use tandem_bench::held_memory::HeldMemory;
use tandem_device::DeviceKind;
use tandem_device::bytes::{MIB, mib_ceil};
use tandem_launch::inventory::Inventory;
use tandem_plan::setting::Id;
use tandem_plan::{Hardware, Mode, Settings};

use super::setup::BenchSetup;
use super::table::{TextTable, sign};
use super::{BenchArgs, BenchOutput, failed};
use crate::data;
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

const STEPS_ON_CARDS: usize = 1000;
/// Off CUDA, the maths runs on the CPU.
const STEPS_OFF_CUDA: usize = 6;

/// The smallest limits that the plan accepts.
pub(super) struct SmallestLimits {
    /// None on the CPU, which takes no limits.
    smallest: Option<Smallest>,
    /// Holds the checkpoints and the generated corpus.
    folder: Scratch,
}

/// Finds the smallest limits and resolves the plan with them.
pub(super) fn prepare(args: &BenchArgs, screen: &Screen) -> Result<(BenchSetup, SmallestLimits), Exit> {
    let inventory = super::setup::survey(args)?;
    let settings = isolated(&args.plan.settings, &inventory.hardware)?;
    let folder = Scratch::new()?;
    let corpus = data::open_or_generate(&args.plan, &folder, screen)?;
    // The first resolution finds the driver's share and the demands; the second one plans with the limits.
    let refused = |refusal| Exit::Refused(Box::new(refusal));
    let mut first = inventory.resolve(&settings, Some(&corpus.facts)).map_err(refused)?;
    first.plan.cache.move_into(folder.path());
    if first.plan.mode == Mode::Cpu {
        return Ok((BenchSetup::new(first, Some(corpus), args)?, SmallestLimits { smallest: None, folder }));
    }
    let smallest = memory::smallest(&settings, &first.hardware, &corpus.facts).map_err(refused)?;
    let mut resolved = Inventory::again(first).resolve(&smallest.settings, Some(&corpus.facts)).map_err(refused)?;
    resolved.plan.cache.move_into(folder.path());
    let limits = SmallestLimits { smallest: Some(smallest), folder };
    Ok((BenchSetup::new(resolved, Some(corpus), args)?, limits))
}

/// The user's settings with isolation, on one shared card unless they name cards.
fn isolated(settings: &Settings, hardware: &Hardware) -> Result<Settings, Exit> {
    let given = |id| settings.given(id).is_some();
    let on_cpu = settings.given_choice(Id::Mode) == Some("cpu") || hardware.cards.is_empty();
    if on_cpu && !given(Id::DataGpu) && !given(Id::ShareGpu) {
        return Ok(settings.clone());
    }
    let mut added = vec![("enable-memory-isolation", "true")];
    if !given(Id::DataGpu) && !given(Id::ModelGpu) && !given(Id::ShareGpu) {
        added.push(("share-gpu", "true"));
    }
    Ok(settings.with(&added)?)
}

pub(super) fn measure(
    args: &BenchArgs,
    setup: &BenchSetup,
    limits: &SmallestLimits,
    screen: &Screen,
) -> Result<BenchOutput, Exit> {
    let default = if setup.kind() == DeviceKind::Cuda { STEPS_ON_CARDS } else { STEPS_OFF_CUDA };
    let steps = args.steps.unwrap_or(default);
    let Some(corpus) = &setup.corpus else { return Ok(BenchOutput::default()) };
    screen.progress(&format!("Running {steps} steps..."))?;
    let checkpoints = limits.folder.path().join("checkpoints");
    let run = memory::run(&setup.resolved, &corpus.corpora, &checkpoints, steps, &setup.context.emitter);
    let report = run.map_err(failed)?;
    let mut output = BenchOutput { broken: report.broken(), ..BenchOutput::default() };
    show_roles(&report, limits.smallest.as_ref(), &mut output);
    show_cards(&report, setup, &mut output);
    Ok(output)
}

fn show_roles(report: &MemoryReport, smallest: Option<&Smallest>, output: &mut BenchOutput) {
    let columns = [
        "role",
        "limit MB",
        "planned MB",
        "peak MB",
        "peak ÷ limit",
        "arena planned bytes",
        "arena used bytes",
        "32 MB less",
        "goal",
    ];
    let [validations, checkpoints] = report.between;
    let work = format!("{} steps, {validations} validations, {checkpoints} checkpoints", report.steps);
    let title = match smallest {
        Some(_) => format!("At the smallest limits the plan accepts: {work}"),
        None => format!("On the CPU: {work}; limits are for GPUs, here the limit is 90 % of free memory"),
    };
    let mut table = TextTable::new(title, &columns);
    for (index, role) in report.roles.iter().enumerate() {
        let below = smallest.map(|smallest| smallest.refused_below[index]);
        let below_text = below.map_or("", |refused| if refused { "refused" } else { "accepted" });
        let met = is_met(role);
        if below == Some(false) {
            let line = format!(
                "the plan also accepts {STEP_MB} MB less for the {} role: this limit is not the smallest",
                role.role
            );
            output.broken.push(line);
        }
        table.row(vec![
            role.role.to_string(),
            (role.limit_bytes / MIB).to_string(),
            mib_ceil(role.planned_bytes).to_string(),
            mib_ceil(role.peak_bytes).to_string(),
            format!("{:.3}", role.share()),
            role.planned_arena_bytes.to_string(),
            role.held_arena_bytes.to_string(),
            below_text.to_owned(),
            sign(Some(met)),
        ]);
        output.rows.push(role_json(role, below));
    }
    table.note("goal: peak ÷ limit ≤ 1.0, and the arena uses exactly the planned bytes");
    table.note("peak: blocks in use by our own count, plus the driver's share");
    output.text += &table.show();
}

fn role_json(role: &RoleReport, below: Option<bool>) -> Value {
    json!({
        "table": "roles",
        "role": role.role.to_string(),
        "limit_bytes": role.limit_bytes,
        "planned_bytes": role.planned_bytes,
        "peak_bytes": role.peak_bytes,
        "of_limit": role.share(),
        "planned_arena_bytes": role.planned_arena_bytes,
        "held_arena_bytes": role.held_arena_bytes,
        "refused_32_mb_below": below,
        "goal_met": is_met(role),
    })
}

fn is_met(role: &RoleReport) -> bool {
    role.peak_bytes <= role.limit_bytes && role.held_arena_bytes == role.planned_arena_bytes
}

fn show_cards(report: &MemoryReport, setup: &BenchSetup, output: &mut BenchOutput) {
    let [device, pinned] = report.allocations;
    let mut table = match setup.kind() {
        DeviceKind::Cpu => TextTable::new("No GPU: no driver figures to compare", &[""]),
        _ => TextTable::new(
            "Memory of the process, as reported by the driver",
            &["GPU", "limits MB", "peak MB", "samples", "goal"],
        ),
    };
    for card in &report.cards {
        let used = card.bytes.map_or("unknown".to_owned(), |bytes| mib_ceil(bytes).to_string());
        let met = card.bytes.map(|_| card.kept());
        let (limit, samples) = (card.limit_bytes / MIB, card.samples.to_string());
        table.row(vec![format!("GPU {}", card.card), limit.to_string(), used, samples, sign(met)]);
        output.rows.push(json!({
            "table": "cards",
            "gpu": card.card,
            "limit_bytes": card.limit_bytes,
            "peak_bytes": card.bytes,
            "samples": card.samples,
            "goal_met": met,
        }));
    }
    let met = device + pinned == 0;
    let grown =
        format!("{} {device} device and {pinned} page-locked allocations after warm-up; goal: 0", sign(Some(met)));
    let has_grown = report.grown().next().is_some();
    let compared = report.held.as_ref().map(|[before, after]| compared(before, after, sign(Some(!has_grown))));
    let held = |at: usize, of: fn(&HeldMemory) -> Option<u64>| {
        report.held.as_ref().map(|held| held[at].iter().map(of).collect::<Vec<_>>())
    };
    output.rows.push(json!({
        "table": "growth",
        "steps": report.steps,
        "validations": report.between[0],
        "checkpoints": report.between[1],
        "device_allocations": device,
        "pinned_allocations": pinned,
        "process_bytes_before": held(0, |held| held.process_bytes),
        "process_bytes_after": held(1, |held| held.process_bytes),
        "free_bytes_before": held(0, |held| Some(held.free_bytes)),
        "free_bytes_after": held(1, |held| Some(held.free_bytes)),
        "goal_met": met && !has_grown,
    }));
    table.note(grown);
    table.note(compared.unwrap_or_else(|| "free memory is not compared: other processes change it too".to_owned()));
    output.text += &table.show();
}

/// The line about memory before and after the steps: of this process, or of the card if the driver does not report that.
fn compared(before: &[HeldMemory], after: &[HeldMemory], sign: String) -> String {
    let list = |bytes: Vec<u64>| bytes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let process =
        |held: &[HeldMemory]| held.iter().map(|held| held.process_bytes).collect::<Option<Vec<u64>>>().map(list);
    match (process(before), process(after)) {
        (Some(before), Some(after)) => {
            format!("{sign} bytes of this process reported by the driver before and after: {before} and {after}")
        }
        _ => {
            let free = |held: &[HeldMemory]| list(held.iter().map(|held| held.free_bytes).collect());
            let (before, after) = (free(before), free(after));
            format!("free bytes of the cards before and after, other processes included: {before} and {after}")
        }
    }
}

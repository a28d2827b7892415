//! `tandem bench memory`.

use serde_json::{Value, json};
use tandem_bench::benchmarks::memory::{self, MemoryReport, RoleReport, STEP_MB, Smallest};
use tandem_device::DeviceKind;
use tandem_device::bytes::{MIB, mib_ceil};
use tandem_launch::inventory::Inventory;
use tandem_plan::setting::Id;
use tandem_plan::{Hardware, Mode, Settings};

use super::setup::BenchSetup;
use super::table::{TextTable, sign};
use super::{BenchArgs, Found, failed};
use crate::data;
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

const STEPS_ON_CARDS: usize = 1000;
/// Elsewhere the maths runs on the CPU.
const STEPS_ELSEWHERE: usize = 6;

/// The ground for it: the plan at the smallest limits, and what was found on the way there.
pub(super) struct AtTheLimit {
    /// None on the CPU, which has no limits to give.
    smallest: Option<Smallest>,
    /// For checkpoints, and the corpus it made for itself; gone when this is.
    folder: Scratch,
}

pub(super) fn ground(call: &BenchArgs, screen: &Screen) -> Result<(BenchSetup, AtTheLimit), Exit> {
    let site = super::setup::survey(call)?;
    let settings = isolated(&call.plan.settings, &site.hardware)?;
    let folder = Scratch::new()?;
    let corpus = data::open_or_make(&call.plan, &folder, screen)?;
    // Once more with the limits: the first time finds the machine, the driver's part, and what is needed.
    let refused = |refusal| Exit::Refused(Box::new(refusal));
    let found = site.resolve(&settings, Some(&corpus.facts)).map_err(refused)?;
    if found.plan.mode == Mode::Cpu {
        return Ok((BenchSetup::of(found, Some(corpus), call)?, AtTheLimit { smallest: None, folder }));
    }
    let smallest = memory::smallest(&settings, &found.hardware, &corpus.facts).map_err(refused)?;
    let resolved = Inventory::again(found).resolve(&smallest.settings, Some(&corpus.facts)).map_err(refused)?;
    let limit = AtTheLimit { smallest: Some(smallest), folder };
    Ok((BenchSetup::of(resolved, Some(corpus), call)?, limit))
}

/// The user's flags, and isolation: on one card where nothing says which.
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
    call: &BenchArgs,
    ground: &BenchSetup,
    limit: &AtTheLimit,
    screen: &Screen,
) -> Result<Found, Exit> {
    let usual = if ground.kind() == DeviceKind::Cuda { STEPS_ON_CARDS } else { STEPS_ELSEWHERE };
    let steps = call.steps.unwrap_or(usual);
    let Some(corpus) = &ground.corpus else { return Ok(Found::default()) };
    screen.progress(&format!("Running {steps} steps..."))?;
    let checkpoints = limit.folder.path().join("checkpoints");
    let run = memory::run(&ground.resolved, &corpus.corpora, &checkpoints, steps, &ground.site.emitter);
    let report = run.map_err(failed)?;
    let mut found = Found { broken: report.broken(), ..Found::default() };
    show_roles(&report, limit.smallest.as_ref(), &mut found);
    show_cards(&report, ground, &mut found);
    Ok(found)
}

fn show_roles(report: &MemoryReport, smallest: Option<&Smallest>, found: &mut Found) {
    let columns = [
        "role",
        "limit MB",
        "planned MB",
        "peak MB",
        "peak ÷ limit",
        "arena planned, bytes",
        "arena held, bytes",
        "32 MB less",
        "goal",
    ];
    let [validations, checkpoints] = report.between;
    let work = format!("{} steps, {validations} validations, {checkpoints} checkpoints", report.steps);
    let title = match smallest {
        Some(_) => format!("At the smallest limits that are accepted: {work}"),
        None => format!("On the CPU: {work}; limits are for GPUs: here 90 % of free memory is the limit"),
    };
    let mut table = TextTable::new(title, &columns);
    for (at, role) in report.roles.iter().enumerate() {
        let below = smallest.map(|smallest| smallest.refused_below[at]);
        let below_text = below.map_or("", |refused| if refused { "refused" } else { "accepted" });
        let met = is_met(role);
        if below == Some(false) {
            let line =
                format!("{STEP_MB} MB less for the {} role is accepted too: this is not the smallest", role.role);
            found.broken.push(line);
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
        found.rows.push(role_json(role, below));
    }
    table.note("goal: peak ÷ limit ≤ 1.0, and the arena holds what was planned, to the byte");
    table.note("peaks are the blocks in use, by our count, with the driver's part");
    found.text += &table.show();
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

fn show_cards(report: &MemoryReport, ground: &BenchSetup, found: &mut Found) {
    let [device, pinned] = report.allocations;
    let mut table = match ground.kind() {
        DeviceKind::Cpu => TextTable::new("No cards, so nothing to read off a driver", &[""]),
        _ => TextTable::new("The process, by the driver", &["card", "limits MB", "peak MB", "samples", "goal"]),
    };
    for card in &report.cards {
        let used = card.bytes.map_or("not said".to_owned(), |bytes| mib_ceil(bytes).to_string());
        let met = card.bytes.map(|_| card.kept());
        let (limit, samples) = (card.limit_bytes / MIB, card.samples.to_string());
        table.row(vec![format!("GPU {}", card.card), limit.to_string(), used, samples, sign(met)]);
        found.rows.push(json!({
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
    let freed = report.free_bytes.as_ref().map(|[before, after]| {
        let list = |bytes: &[u64]| bytes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let sign = sign(Some(before == after));
        format!("{sign} free bytes by the driver before and after: {} and {}", list(before), list(after))
    });
    found.rows.push(json!({
        "table": "growth",
        "steps": report.steps,
        "validations": report.between[0],
        "checkpoints": report.between[1],
        "device_allocations": device,
        "pinned_allocations": pinned,
        "free_bytes_before": report.free_bytes.as_ref().map(|[before, _]| before),
        "free_bytes_after": report.free_bytes.as_ref().map(|[_, after]| after),
        "goal_met": met && report.free_bytes.as_ref().is_none_or(|[before, after]| before == after),
    }));
    table.note(grown);
    table.note(freed.unwrap_or_else(|| "free memory is not compared: others move it too".to_owned()));
    found.text += &table.show();
}

//! A plan as people read it.

use std::fmt::Write as _;

use tandem_device::bytes::show;
use tandem_events::Role;

use crate::hardware::Hardware;
use crate::memory::place;
use crate::placement::Precision;
use crate::plan::{Level, Plan, RolePlan};

/// The cards found, then the plan: mode and why, memory per role, shapes, slots, and what was said about it.
pub fn show_plan(plan: &Plan, hardware: &Hardware) -> String {
    let mut text = show_gpus(hardware);
    let isolated = if plan.isolated { ", memory-isolated" } else { "" };
    push(&mut text, "Mode", &format!("{}{isolated} ({})", plan.mode, plan.why));
    for role in Role::BOTH {
        push(&mut text, &format!("{role} role"), &device(plan.role(role)));
    }
    for role in Role::BOTH {
        text.push('\n');
        text.push_str(&memory_table(plan.role(role)));
    }
    text.push('\n');
    for (name, value) in rest(plan) {
        push(&mut text, name, &value);
    }
    for (name, lines) in [("Note", &plan.notes), ("Hint", &plan.hints), ("Advice", &plan.advice)] {
        lines.iter().for_each(|line| push(&mut text, name, line));
    }
    text
}

/// The cards found, one line each.
pub fn show_gpus(hardware: &Hardware) -> String {
    if hardware.cards.is_empty() {
        return "GPUs found: none\n".to_owned();
    }
    let mut text = String::from("GPUs found:\n");
    for facts in &hardware.cards {
        let (card, reading) = (&facts.card, &facts.reading);
        let hidden = card.hidden_by.as_ref().map(|by| format!(", hidden by {by}")).unwrap_or_default();
        let (total, free) = (show(reading.total_bytes), show(reading.free_bytes));
        let _ = writeln!(text, "  {}  {}  {}  total {total}, free {free}{hidden}", card.index, card.name, card.uuid);
    }
    text
}

/// The plan in a few lines, for the start of a run.
pub fn show_short(plan: &Plan) -> String {
    let role = |role: Role| {
        let role_plan = plan.role(role);
        let (planned, limit) = (role_plan.planned_mb(), role_plan.limit_mb());
        format!("{role} {planned}/{limit} MB on {}", place(role_plan.card))
    };
    format!(
        "Plan: {}, {}; batch {}, {} model, {} prefetched + {} slots of {}, transfer {}, {} threads",
        role(Role::Data),
        role(Role::Model),
        parts(plan),
        plan.model_size.name(),
        plan.buffer_size,
        plan.prefetch,
        show(plan.slot_bytes),
        plan.transfer,
        plan.threads,
    )
}

fn push(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "{:<12} {value}", format!("{name}:"));
}

fn device(role: &RolePlan) -> String {
    match (&role.uuid, role.card) {
        (Some(uuid), Some(card)) => format!("GPU {card}: {} ({uuid})", role.name),
        _ => role.name.clone(),
    }
}

fn memory_table(role: &RolePlan) -> String {
    let percent = |bytes: u64| 100.0 * bytes as f64 / role.limit_bytes.max(1) as f64;
    let mut text = format!(
        "Memory of the {} role on {}: {} of {} MB, {:.1} % of its limit ({})\n",
        role.role,
        place(role.card),
        role.planned_mb(),
        role.limit_mb(),
        percent(role.planned_bytes),
        role.strength,
    );
    for line in &role.lines {
        let _ = writeln!(text, "  {:>10}  {:>5.1} %  {}", show(line.bytes), percent(line.bytes), line.name);
    }
    let _ = writeln!(text, "  {:>10}  {:>5.1} %  planned", show(role.planned_bytes), percent(role.planned_bytes));
    text
}

fn rest(plan: &Plan) -> [(&'static str, String); 9] {
    let buckets: Vec<String> = plan.buckets.iter().map(|b| format!("{}/{}", b.frames, b.tokens)).collect();
    let asked = match plan.buffer_size_asked {
        asked if asked == plan.buffer_size => String::new(),
        asked => format!(" (of {asked}: two GPUs keep max(6, N/2))"),
    };
    [
        ("Batch", format!("{} utterances per optimizer step", parts(plan))),
        ("Buckets", format!("{} (frames/tokens)", buckets.join(" "))),
        (
            "Slots",
            format!(
                "{} batches prefetched{asked}, {} slots towards the model, {} each",
                plan.buffer_size,
                plan.prefetch,
                show(plan.slot_bytes)
            ),
        ),
        ("Transfer", plan.transfer.describe()),
        ("Threads", format!("{} to decode", plan.threads)),
        ("Model", format!("{} ({}), {}", plan.model_size.name(), plan.model_name, precision(plan.precision))),
        ("Optimizer", optimizer(plan.level).to_owned()),
        ("Driver", plan.driver_source.clone().unwrap_or_else(|| "none".to_owned())),
        ("Start", format!("seed {}, up to {:.1} s for a warm buffer", plan.seed, plan.start_delay_seconds)),
    ]
}

fn parts(plan: &Plan) -> String {
    match plan.grad_accum {
        1 => plan.batch_size.to_string(),
        parts => format!("{} ({parts} x {})", plan.batch_size, plan.batch_size / parts),
    }
}

fn precision(precision: Precision) -> &'static str {
    match precision {
        Precision::Full => "f32 throughout",
        Precision::Mixed => "bf16 compute with f32 master weights",
    }
}

fn optimizer(level: Level) -> &'static str {
    match level {
        Level::Basic => "basic: AdamW",
        Level::Enhanced => "enhanced: AdamW with an averaged (EMA) copy of the weights",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{cpu_only, gpus, settings};
    use crate::stand_in::StandIns;

    fn check(line: &str, hardware: &Hardware, parts: &[&str]) {
        let text = show_plan(&Plan::solve(&settings(line), hardware, &StandIns).unwrap(), hardware);
        for part in parts {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn what_a_plan_shows() {
        check(
            "--data-gpu 0 --model-gpu 1 --enable-memory-isolation --prefetch-buffer-size 2",
            &gpus(2, 24),
            &[
                "GPUs found:\n  0  Simulated GPU  GPU-simulated-0  total 24576 MB, free 24576 MB\n",
                "Mode:        Multi-GPU Mode, memory-isolated (--data-gpu 0 --model-gpu 1)\n",
                "data role:   GPU 0: Simulated GPU (GPU-simulated-0)\n",
                "Memory of the data role on GPU 0: ",
                " of 8192 MB, ",
                "(planned+reserved, driver pool cap)",
                "input slots",
                "128/25 256/50",
                "25 batches prefetched (of 50: two GPUs keep max(6, N/2)), 3 slots towards the model, 7.0 MB each\n",
                "Transfer:    bounce (the GPUs do not reach each other's memory)\n",
                "Note:        --prefetch-buffer-size 2 raised to 3",
                "Driver:      table: test\n",
                "Advice:      ",
            ],
        );
        check("", &gpus(2, 24), &["Hint:        2 GPUs found: dual mode needs", "slots handed over"]);
        check(
            "",
            &cpu_only(),
            &["GPUs found: none\n", "Mode:        CPU Mode (no NVIDIA device is present)", "model role:  CPU\n"],
        );
    }

    #[test]
    fn the_short_form_is_one_line() {
        let plan = Plan::solve(&settings("--gpu 0"), &gpus(1, 24), &StandIns).unwrap();
        let text = show_short(&plan);
        assert!(text.starts_with("Plan: data ") && text.contains(" MB on GPU 0; batch 16, tiny model"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}

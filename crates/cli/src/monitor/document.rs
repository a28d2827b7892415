//! The state of a run as a JSON document: the figures of the screen, for scripts. Unknown values are null.

use serde_json::{Map, Value, json};
use tandem_diagnosis::RankWait;
use tandem_events::Role;

use super::alarms::{Alarm, AlarmLevel};
use super::figures::{MonitorFrame, StageRow};
use super::liveness::RunStatus;
use super::run_state::{CheckCounts, ProcessMemory, index_of};
use super::slots::Ring;

/// More alarms than a run keeps.
const ALL: usize = usize::MAX;

pub(super) fn document(run: &MonitorFrame<'_>) -> Value {
    let (state, plan, recent) = (run.state, &run.state.plan, &run.recent);
    let memory = |memory: ProcessMemory| json!({ "bytes": memory.bytes, "limit_bytes": memory.limit_bytes });
    let process = state.process.iter().map(|(card, used)| {
        let mut row = memory(*used);
        row["gpu"] = (*card).into();
        row
    });
    let feed = recent.setting.as_ref().map(|setting| {
        let (threads, route) = (setting.threads, &setting.route);
        json!({ "threads": threads, "buffer_size": setting.ahead, "prefetch": setting.slots, "route": route })
    });
    let CheckCounts { passed, failed } = state.checks;
    json!({
        "run_log": run.log.display().to_string(),
        "command": state.command,
        "simulated": plan.simulated,
        "mode": plan.mode,
        "model_size": plan.model_size,
        "batch_size": plan.batch_size,
        "status": status(run),
        "step": state.step,
        "max_steps": plan.max_steps,
        "epoch": state.epoch,
        "epochs": plan.epochs,
        "elapsed_s": state.t_ns as f64 / 1e9,
        "steps_per_s": recent.pace.map(|pace| pace.steps_per_s),
        "stall_share": run.stall_share(),
        "variation": recent.diagnosis.as_ref().map(|diagnosis| diagnosis.jitter.variation),
        "losses": state.losses,
        "lr": state.lr,
        "gradient_norm": state.gradient_norm,
        "loss_curve": state.curve.points().iter().map(|(step, loss)| json!([step, loss])).collect::<Vec<_>>(),
        "roles": { "data": role(run, Role::Data), "model": role(run, Role::Model) },
        "process": process.collect::<Vec<_>>(),
        "host": state.host.map(memory),
        "stages": run.stages().iter().map(stage).collect::<Vec<_>>(),
        "ranks": recent.rank_waits.iter().map(rank).collect::<Vec<_>>(),
        "straggler": recent.straggler.map(|straggler| straggler.rank),
        "slots": recent.rings.iter().map(ring).collect::<Vec<_>>(),
        "feed": feed,
        "validation": validation(run),
        "checkpoint_step": state.checkpoint,
        "samples": state.samples,
        "checks": { "passed": passed, "failed": failed },
        "alarms": state.alarms().last(ALL).into_iter().map(alarm).collect::<Vec<_>>(),
        "dropped": state.dropped,
        "unreadable_lines": state.broken,
        "unknown_records": state.unknown,
    })
}

fn status(run: &MonitorFrame<'_>) -> Value {
    let (name, silent) = match &run.status {
        RunStatus::NotStarted => ("not_started", None),
        RunStatus::Running { silent } => ("running", *silent),
        RunStatus::Ended { .. } => ("ended", None),
        RunStatus::Killed { silent } => ("killed", *silent),
        RunStatus::Unknown { silent, .. } => ("unknown", *silent),
    };
    let ended = match &run.status {
        RunStatus::Ended { exit_code, reason } => Some((exit_code, reason)),
        _ => None,
    };
    json!({
        "state": name,
        "text": run.status().0,
        "exit_code": ended.map(|(code, _)| code),
        "reason": ended.map(|(_, reason)| reason),
        "last_record_age_s": silent.map(|silent| silent.as_secs_f64()),
    })
}

fn role(run: &MonitorFrame<'_>, role: Role) -> Value {
    let (memory, plan) = (&run.state.memory[index_of(role)], &run.state.plan.roles[index_of(role)]);
    let card = plan.card.or(memory.card.map(|card| card as u64));
    let is_cpu = run.state.plan.mode.as_deref() == Some("cpu");
    json!({
        "gpu": card.filter(|_| !is_cpu),
        "name": run.card_name(role),
        "used_bytes": memory.used_bytes,
        "peak_bytes": memory.peak_bytes,
        "limit_bytes": run.state.limit_bytes(role),
        "busy_share": run.busy(role),
        "power_watts": run.watts[index_of(role)],
        "largest": memory.largest.as_ref().map(|(owner, bytes)| json!({ "owner": owner, "bytes": bytes })),
    })
}

fn stage(row: &StageRow) -> Value {
    json!({ "name": row.name, "mean_ms": row.mean_ms, "p95_ms": row.p95_ms, "stall_share": row.stall })
}

fn rank(wait: &RankWait) -> Value {
    json!({ "rank": wait.rank, "wait_ms": wait.wait_ns / 1e6, "wait_share": wait.share })
}

fn ring(ring: &Ring) -> Value {
    let states: Map<String, Value> =
        ring.states.iter().map(|(state, count)| (state.replace(' ', "_"), Value::from(*count))).collect();
    json!({ "name": ring.name, "slots": ring.of, "ready": ring.ready, "states": states })
}

fn validation(run: &MonitorFrame<'_>) -> Option<Value> {
    let last = run.state.validation.as_ref()?;
    let best = last.best.map(|(mel, step)| json!({ "step": step, "mel": mel }));
    Some(json!({ "step": last.step, "utterances": last.utterances, "metrics": last.metrics, "best": best }))
}

fn alarm(alarm: &Alarm) -> Value {
    let level = if alarm.level == AlarmLevel::Alarm { "alarm" } else { "note" };
    json!({ "step": alarm.step, "level": level, "text": alarm.text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::run_state::RunState;
    use crate::monitor::run_state::tests::{pair, ranks, state_of};

    fn document_of(state: &RunState) -> Value {
        document(&MonitorFrame {
            recent: state.recent_figures(),
            status: RunStatus::Running { silent: None },
            watts: [None; 2],
            log: "voice/run.jsonl".into(),
            share_read: 1.0,
            state,
        })
    }

    #[test]
    fn ranks_are_listed_with_their_waits_and_the_slowest_is_named() {
        let found = document_of(&state_of(ranks(60, &[50, 0])));
        let expected = json!([
            { "rank": 0, "wait_ms": 5.0, "wait_share": 0.25 },
            { "rank": 1, "wait_ms": 0.0, "wait_share": 0.0 },
        ]);
        assert_eq!((&found["ranks"], &found["straggler"]), (&expected, &json!(1)));
        let alike = document_of(&state_of(ranks(60, &[10, 10])));
        assert_eq!((alike["ranks"].as_array().map(Vec::len), &alike["straggler"]), (Some(2), &Value::Null));
    }

    #[test]
    fn a_run_with_one_rank_has_an_empty_list_of_ranks() {
        let found = document_of(&state_of(pair(60)));
        assert_eq!((&found["ranks"], found.get("straggler")), (&json!([]), Some(&Value::Null)));
    }
}

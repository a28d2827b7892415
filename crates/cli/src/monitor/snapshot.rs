//! The state of a run as plain text in 80 columns: for pipes, mails and `watch`.

use tandem_events::Role;

use super::figures::{MonitorFrame, Tone, UNKNOWN, mb, ms, share};
use super::run_state::{CheckCounts, index_of};

const COLUMNS: usize = 80;
/// The column where values start.
const INDENT: usize = 12;
/// Columns of the loss curve.
const CURVE_COLUMNS: usize = 48;
const MAX_ALARMS: usize = 12;
/// The waits of more ranks are shown as their mean.
const MAX_LISTED_RANKS: u64 = 8;
const GLUED_PERCENT: &str = "\u{a0}%";

/// The whole state. Lines have at most 80 columns, except for a single word that is longer.
pub(super) fn text(run: &MonitorFrame<'_>) -> String {
    let mut page = Page::default();
    page.entry("Run", &format!("{} ({})", run.log.display(), run.description()));
    page.entry("State", &run.status().0);
    page.entry("Step", &run.step());
    let (pace, stall, variation) = (run.steps_per_s(), run.stall(), run.variation());
    page.entry("Speed", &format!("{pace}, stall {stall}, variation {variation}"));
    if let Some(ranks) = ranks(run) {
        page.entry("Ranks", &ranks);
    }
    page.entry("Loss", &run.losses());
    if let Some(curve) = curve(run) {
        page.raw("", &curve);
    }
    for role in Role::BOTH {
        role_entries(run, role, &mut page);
    }
    for (card, memory) in &run.state.process {
        let (used, limit) = (mb(Some(memory.bytes)), mb(Some(memory.limit_bytes)));
        page.entry("Process", &format!("{used}/{limit} MB on GPU {card}, as reported by the driver"));
    }
    if let Some(host) = run.state.host {
        page.entry("Host", &format!("{}/{} MB", mb(Some(host.bytes)), mb(Some(host.limit_bytes))));
    }
    page.raw("Stages", &format!("{:<10}{:>10}{:>10}{:>14}", "ms", "mean", "p95", "stall"));
    for row in run.stages() {
        let stall = share(row.stall, 0);
        page.raw("", &format!("{:<10}{:>10}{:>10}{stall:>14}", row.name, ms(row.mean_ms), ms(row.p95_ms)));
    }
    page.entry("Slots", &slots(run));
    page.entry("Validation", &run.validation().join(", "));
    page.entry("Saved", &run.saved());
    let CheckCounts { passed, failed } = run.state.checks;
    if passed + failed > 0 {
        page.entry("Checks", &format!("{passed} passed, {failed} failed"));
    }
    let (alarms, notes): (Vec<_>, Vec<_>) =
        run.alarms(MAX_ALARMS).into_iter().partition(|(_, tone)| *tone == Tone::Bad);
    if alarms.is_empty() {
        page.entry("Alarms", "none");
    }
    for (title, lines) in [("Alarms", alarms), ("Notes", notes)] {
        for (i, (text, _)) in lines.iter().enumerate() {
            page.entry(if i == 0 { title } else { "" }, text);
        }
    }
    page.0
}

fn role_entries(run: &MonitorFrame<'_>, role: Role, page: &mut Page) {
    let memory = &run.state.memory[index_of(role)];
    let name = run.card_name(role).map(|name| format!(" ({name})")).unwrap_or_default();
    let device = run.role(role);
    let (busy, power) = (share(run.busy(role), 0), run.power(role));
    let title = if role == Role::Data { "Data" } else { "Model" };
    let device = device.strip_prefix(title).unwrap_or_default().trim_start();
    let device = if device.is_empty() { String::new() } else { format!("{device}{name}: ") };
    let peak = memory.peak_bytes.map(|bytes| format!(", peak {} MB", mb(Some(bytes)))).unwrap_or_default();
    page.entry(title, &format!("{device}{}{peak}, busy {busy}, power {power}", run.memory(role)));
    if let Some(largest) = run.largest(role) {
        page.entry("", &format!("largest: {largest}"));
    }
}

fn slots(run: &MonitorFrame<'_>) -> String {
    let ring = |ring: &super::slots::Ring| {
        let states: Vec<String> = ring.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        format!("{} {}: {}; ", ring.of, ring.name, states.join(", "))
    };
    let rings: String = run.recent.rings.iter().map(ring).collect();
    if rings.is_empty() && run.recent.setting.is_none() { UNKNOWN.to_owned() } else { rings + &run.feed() }
}

/// `4  waiting 0: 2.1 ms  1: 2.0 ms  2: 0.0 ms  3: 2.2 ms  rank 2 is the slowest (10 % of each step)`
fn ranks(run: &MonitorFrame<'_>) -> Option<String> {
    let count = run.num_ranks()?;
    let waits = if count <= MAX_LISTED_RANKS { run.rank_waits() } else { run.mean_rank_wait() };
    let parts = [Some(count.to_string()), Some(waits), run.straggler()];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join("  "))
}

/// The loss over all steps as a row of block characters, with its first and last value.
fn curve(run: &MonitorFrame<'_>) -> Option<String> {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let points = run.state.curve.points();
    let (first, last) = (points.first()?, points.last()?);
    let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    let columns = CURVE_COLUMNS.min(values.len());
    let mean = |column: usize| {
        let part = &values[column * values.len() / columns..(column + 1) * values.len() / columns];
        part.iter().sum::<f64>() / part.len() as f64
    };
    let means: Vec<f64> = (0..columns).map(mean).collect();
    let (low, high) = means.iter().fold((f64::MAX, f64::MIN), |(low, high), mean| (low.min(*mean), high.max(*mean)));
    let level = |mean: &f64| LEVELS[((mean - low) / (high - low).max(f64::MIN_POSITIVE) * 7.0).round() as usize];
    let blocks: String = means.iter().map(level).collect();
    Some(format!("{blocks} {:.3} to {:.3}", first.1, last.1))
}

/// Lines with a title, wrapped at words.
#[derive(Default)]
struct Page(String);

impl Page {
    fn entry(&mut self, title: &str, text: &str) {
        // A number and its percent sign stay on one line.
        let text = text.replace(" %", GLUED_PERCENT);
        let mut title = title;
        let mut line = String::new();
        for word in text.split(' ') {
            if !line.is_empty() && INDENT + line.chars().count() + 1 + word.chars().count() > COLUMNS {
                self.raw(title, &line);
                (title, line) = ("", String::new());
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line += word;
        }
        self.raw(title, &line);
    }

    fn raw(&mut self, title: &str, line: &str) {
        let title = if title.is_empty() { String::new() } else { format!("{title}:") };
        // Notes come from a file: control characters are removed.
        let line: String =
            line.replace(GLUED_PERCENT, " %").chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.0 += format!("{title:<INDENT$}{line}").trim_end();
        self.0.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use tandem_events::RunEvent;

    use super::*;
    use crate::monitor::liveness::RunStatus;
    use crate::monitor::run_state::RunState;
    use crate::monitor::run_state::tests::{pair, ranks, state_of};

    fn shown(state: &RunState, status: RunStatus) -> String {
        let recent = state.recent_figures();
        text(&MonitorFrame {
            state,
            recent,
            status,
            watts: [None, Some(412.4)],
            log: "voice/run.jsonl".into(),
            share_read: 1.0,
        })
    }

    #[test]
    fn every_figure_is_shown() {
        let text = shown(&state_of(pair(250)), RunStatus::Running { silent: None });
        let expected = "\
Run:        voice/run.jsonl (train, multi, nano, batch 4)
State:      running
Step:       250 of 300, epoch 3 of 500, 5 s
Speed:      50.00 steps/s, stall 25.0 %, variation 0 %
Loss:       loss 0.016  mel 0.500  lr 1.0e-3  gradient norm 1.50
            █▃▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ 4.000 to 0.016
Data:       GPU 0 (NVIDIA H200): 4096/8192 MB (50.0 %), peak 4097 MB, busy 4 %,
            power —
            largest: slots 4095 MB
Model:      GPU 1 (NVIDIA H200): 8192/16384 MB (50.0 %), peak 8193 MB, busy
            75 %, power 412 W
            largest: slots 8191 MB
Stages:     ms              mean       p95         stall
            load           20.00     20.00          25 %
            upload          0.20      0.20           0 %
            features        0.90      0.90           0 %
            transfer        0.30      0.30           0 %
            train          15.00     15.00             —
Slots:      25 data slots: 25 in transfer or free; 4 model slots: 4 leased or
            free; 2 decode threads, peer
Validation: —
Saved:      —
Alarms:     none
";
        assert_eq!(text, expected);
    }

    #[test]
    fn several_ranks_are_shown_with_the_slowest() {
        let check = |waits: &[u64], expected: &str| {
            let text = shown(&state_of(ranks(60, waits)), RunStatus::Running { silent: None });
            assert!(text.contains(expected), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        };
        check(
            &[21, 20, 0, 22],
            "
Ranks:      4  waiting 0: 2.1 ms  1: 2.0 ms  2: 0.0 ms  3: 2.2 ms  rank 2 is the
            slowest (10 % of each step)
Loss: ",
        );
        check(&[21, 21], "\nRanks:      2  waiting 0: 2.1 ms  1: 2.1 ms\nLoss: ");
        let many: Vec<u64> = (0..16).map(|rank| if rank == 3 { 0 } else { 32 }).collect();
        check(&many, "\nRanks:      16  mean wait 3.0 ms  rank 3 is the slowest (16 % of each step)\nLoss: ");
    }

    #[test]
    fn an_empty_log_is_shown_without_figures() {
        let text = shown(&RunState::default(), RunStatus::NotStarted);
        assert!(
            text.contains("State:      no records yet\n") && text.contains("Speed:      —, stall —, variation —\n"),
            "{text}"
        );
    }

    #[test]
    fn lines_fit_and_have_no_control_characters() {
        let mut events = pair(60);
        let long = format!("\u{1b}[31mred {}", "words of a long note ".repeat(20));
        events.push((0, RunEvent::Note { text: long }));
        let text = shown(&state_of(events), RunStatus::Killed { silent: None });
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(!text.contains('\u{a0}') && !text.lines().any(|line| line.trim().starts_with('%')), "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("killed (no end in the log)"), "{text}");
    }
}

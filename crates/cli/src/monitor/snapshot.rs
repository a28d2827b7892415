//! A run as plain text in 80 columns: for pipes, mails and `watch`.

use tandem_events::Role;

use super::figures::{MonitorFrame, Tone, UNKNOWN, mb, ms, share};

const COLUMNS: usize = 80;
/// Where values begin.
const INDENT: usize = 11;
/// Columns of the loss curve.
const CURVE_COLUMNS: usize = 48;
const ALARMS: usize = 12;
const GLUED_PERCENT: &str = "\u{a0}%";

/// How it stands. Every line is at most 80 columns but for names that are longer by themselves.
pub(super) fn text(picture: &MonitorFrame<'_>) -> String {
    let mut page = Page::default();
    page.entry("Run", &format!("{} ({})", picture.log.display(), picture.what()));
    page.entry("State", &picture.life().0);
    page.entry("Step", &picture.step());
    let (pace, stall, variation) = (picture.steps_per_s(), picture.stall(), picture.variation());
    page.entry("Pace", &format!("{pace}, stall {stall}, variation {variation}"));
    page.entry("Loss", &picture.losses());
    if let Some(curve) = curve(picture) {
        page.raw("", &curve);
    }
    for role in Role::BOTH {
        role_entries(picture, role, &mut page);
    }
    for (card, (bytes, limit)) in &picture.state.process {
        page.entry(
            "Process",
            &format!("{}/{} MB on card {card}, by the driver's count", mb(Some(*bytes)), mb(Some(*limit))),
        );
    }
    if let Some(host) = picture.state.host {
        page.entry("Host", &format!("{}/{} MB", mb(Some(host.bytes)), mb(Some(host.limit_bytes))));
    }
    page.raw("Stages", &format!("{:<10}{:>10}{:>10}{:>14}", "ms", "mean", "p95", "waited for"));
    for row in picture.stages() {
        let waited = share(row.share, 0);
        page.raw("", &format!("{:<10}{:>10}{:>10}{waited:>14}", row.name, ms(row.mean_ms), ms(row.p95_ms)));
    }
    page.entry("Slots", &slots(picture));
    page.entry("Held out", &picture.held_out().join(", "));
    page.entry("Kept", &picture.kept());
    if picture.state.checks != (0, 0) {
        page.entry("Checks", &format!("{} passed, {} failed", picture.state.checks.0, picture.state.checks.1));
    }
    let (alarms, remarks): (Vec<_>, Vec<_>) =
        picture.alarms(ALARMS).into_iter().partition(|(_, tone)| *tone == Tone::Bad);
    if alarms.is_empty() {
        page.entry("Alarms", "none");
    }
    for (title, told) in [("Alarms", alarms), ("Remarks", remarks)] {
        for (i, (text, _)) in told.iter().enumerate() {
            page.entry(if i == 0 { title } else { "" }, text);
        }
    }
    page.0
}

fn role_entries(picture: &MonitorFrame<'_>, role: Role, page: &mut Page) {
    let memory = &picture.state.memory[super::run_state::place(role)];
    let name = picture.card_name(role).map(|name| format!(" ({name})")).unwrap_or_default();
    let place = picture.role(role);
    let (busy, power) = (share(picture.busy(role), 0), picture.power(role));
    let title = if role == Role::Data { "Data" } else { "Model" };
    let place = place.strip_prefix(title).unwrap_or_default().trim_start();
    let place = if place.is_empty() { String::new() } else { format!("{place}{name}: ") };
    let peak = memory.peak_bytes.map(|bytes| format!(", peak {} MB", mb(Some(bytes)))).unwrap_or_default();
    page.entry(title, &format!("{place}{}{peak}, busy {busy}, power {power}", picture.memory(role)));
    if let Some(largest) = picture.largest(role) {
        page.entry("", &format!("most of it: {largest}"));
    }
}

fn slots(picture: &MonitorFrame<'_>) -> String {
    let ring = |ring: &super::slots::Ring| {
        let states: Vec<String> = ring.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        format!("{} {}: {}; ", ring.of, ring.name, states.join(", "))
    };
    let rings: String = picture.lately.rings.iter().map(ring).collect();
    if rings.is_empty() && picture.lately.setting.is_none() { UNKNOWN.to_owned() } else { rings + &picture.feed() }
}

/// The loss over all steps as a row of blocks, with its ends in figures.
fn curve(picture: &MonitorFrame<'_>) -> Option<String> {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let points = picture.state.curve.points();
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

/// Lines with a title in front, wrapped at words.
#[derive(Default)]
struct Page(String);

impl Page {
    fn entry(&mut self, title: &str, text: &str) {
        // A number and its sign stay on one line.
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
        // Remarks come from a file: what would steer a terminal is left out.
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
    use crate::monitor::run_state::RunState;
    use crate::monitor::run_state::tests::{pair, state_of};
    use crate::monitor::sign_of_life::Life;

    fn shown(state: &RunState, life: Life) -> String {
        let lately = state.lately();
        text(&MonitorFrame {
            state,
            lately,
            life,
            watts: [None, Some(412.4)],
            log: "voice/run.jsonl".into(),
            share_read: 1.0,
        })
    }

    #[test]
    fn everything_there_is_to_know_is_said() {
        let text = shown(&state_of(pair(250)), Life::Running { silent: None });
        let expected = "\
Run:       voice/run.jsonl (train, multi, nano, batch 4)
State:     running
Step:      250 of 300, epoch 3 of 500, 5 s
RecentPace:      50.00 steps/s, stall 25.0 %, variation 0 %
Loss:      loss 0.016  mel 0.500  lr 1.0e-3  gradient 1.50
           █▃▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁ 4.000 to 0.016
Data:      GPU 0 (NVIDIA H200): 4096/8192 MB (50.0 %), peak 4097 MB, busy 4 %,
           power —
           most of it: slots 4095 MB
Model:     GPU 1 (NVIDIA H200): 8192/16384 MB (50.0 %), peak 8193 MB, busy 75 %,
           power 412 W
           most of it: slots 8191 MB
Stages:    ms              mean       p95    waited for
           load           20.00     20.00          25 %
           upload          0.20      0.20           0 %
           features        0.90      0.90           0 %
           transfer        0.30      0.30           0 %
           train          15.00     15.00             —
StageProgress:     25 data slots: 25 in transfer or free; 4 model slots: 4 leased or
           free; 2 decode threads, peer
Held out:  —
Kept:      —
RecentAlarms:    none
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_log_that_says_nothing_is_shown_as_that() {
        let text = shown(&RunState::default(), Life::NotBegun);
        assert!(
            text.contains("State:     no record yet\n") && text.contains("RecentPace:      —, stall —, variation —\n"),
            "{text}"
        );
    }

    #[test]
    fn lines_fit_and_nothing_steers_the_terminal() {
        let mut events = pair(60);
        let long = format!("\u{1b}[31mred {}", "words of a long remark ".repeat(20));
        events.push((0, RunEvent::Note { text: long }));
        let text = shown(&state_of(events), Life::Killed { silent: None });
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(!text.contains('\u{a0}') && !text.lines().any(|line| line.trim().starts_with('%')), "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("ended by force"), "{text}");
    }
}

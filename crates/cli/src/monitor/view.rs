//! Draws a run on the terminal, in the space there is. 80 × 24 shows everything; a smaller terminal shows the most important
//! lines, without frames.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph};
use tandem_events::Role;

use super::figures::{MonitorFrame, Tone, bar, ms, plain_char, share};

/// A smaller terminal gets no frames.
const MIN_FRAMED_WIDTH: u16 = 70;
const MIN_FRAMED_HEIGHT: u16 = 20;
/// Lines inside the frames of the roles and of the stages.
const ROLE_LINES: u16 = 3;
const STAGE_LINES: u16 = 6;
/// At most this many lines of alarms, if there is room.
const MAX_ALARM_LINES: u16 = 8;

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, run: &MonitorFrame<'_>, is_plain: bool) {
    let area = frame.area();
    if area.width < MIN_FRAMED_WIDTH || area.height < MIN_FRAMED_HEIGHT + rank_lines(run) {
        draw_small(frame, run);
    } else {
        draw_framed(frame, run);
    }
    if is_plain {
        make_plain(frame);
    }
}

fn draw_framed(frame: &mut Frame<'_>, run: &MonitorFrame<'_>) {
    let area = frame.area();
    // The space left by the other frames and a readable chart.
    let spare = area.height.saturating_sub(2 + rank_lines(run) + ROLE_LINES + 2 + STAGE_LINES + 2 + 5 + 1);
    let alarms = run.alarms(usize::from(spare.clamp(1, MAX_ALARM_LINES)));
    let [title, summary, ranks, roles, middle, lower, alarm_lines, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(rank_lines(run)),
        Constraint::Length(ROLE_LINES + 2),
        Constraint::Length(STAGE_LINES + 2),
        Constraint::Min(4),
        Constraint::Length(alarms.len().max(1) as u16),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(frame, title, run);
    frame.render_widget(Line::from(summary_text(run)).style(Modifier::BOLD), summary);
    if let Some(text) = ranks_text(run, usize::from(ranks.width)) {
        frame.render_widget(Line::from(text), ranks);
    }
    let [data, model] = Layout::horizontal([Constraint::Fill(1); 2]).areas(roles);
    draw_role(frame, data, run, Role::Data);
    draw_role(frame, model, run, Role::Model);
    let [stages, slots] = Layout::horizontal([Constraint::Fill(1); 2]).areas(middle);
    draw_stages(frame, stages, run);
    draw_slots(frame, slots, run);
    let [curve, validation] = Layout::horizontal([Constraint::Fill(2), Constraint::Fill(1)]).areas(lower);
    draw_curve(frame, curve, run);
    draw_lines(frame, validation, "Validation", run.validation());
    draw_alarms(frame, alarm_lines, &alarms);
    frame.render_widget(Line::from(foot_text(run)).style(Modifier::DIM), foot);
}

/// The most important lines, as many as there is room for.
fn draw_small(frame: &mut Frame<'_>, run: &MonitorFrame<'_>) {
    let area = frame.area();
    let (status, tone) = run.status();
    let mut lines = vec![Line::from(status).style(style(tone)), Line::from(format!("Step {}", run.step()))];
    lines.push(Line::from(format!("{}, stall {}", run.steps_per_s(), run.stall())));
    lines.extend(run.straggler().map(Line::from));
    lines.push(Line::from(run.losses()));
    for role in Role::BOTH {
        lines.push(Line::from(format!("{}: {}", run.role(role), run.memory(role))));
    }
    lines.extend(run.alarms(3).into_iter().map(|(text, tone)| Line::from(text).style(style(tone))));
    lines.truncate(usize::from(area.height.saturating_sub(1)));
    lines.push(Line::from("q quits").style(Modifier::DIM));
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, run: &MonitorFrame<'_>) {
    let (status, tone) = run.status();
    let status = format!("● {status} ");
    let width = (status.chars().count() as u16).min(area.width);
    let [left, right] = Layout::horizontal([Constraint::Min(0), Constraint::Length(width)]).areas(area);
    let title = format!(" tandem monitor  {}  {}", run.log.display(), run.description());
    frame.render_widget(Line::from(title).style(Modifier::REVERSED), left);
    frame.render_widget(Line::from(status).style(style(tone).add_modifier(Modifier::REVERSED)), right);
}

fn summary_text(run: &MonitorFrame<'_>) -> String {
    let (pace, stall) = (run.steps_per_s(), run.stall());
    format!(" Step {}  {pace}  stall {stall}  variation {}", run.step(), run.variation())
}

/// Lines about the ranks: none with one rank.
fn rank_lines(run: &MonitorFrame<'_>) -> u16 {
    u16::from(run.num_ranks().is_some())
}

/// The wait of each rank and the slowest one; the mean wait if `width` has no room for all.
fn ranks_text(run: &MonitorFrame<'_>, width: usize) -> Option<String> {
    let count = run.num_ranks()?;
    let straggler = run.straggler().map(|straggler| format!("  {straggler}")).unwrap_or_default();
    let line = |waits: String| format!(" Ranks {count}  {waits}{straggler}");
    let all = line(run.rank_waits());
    Some(if all.chars().count() <= width { all } else { line(run.mean_rank_wait()) })
}

fn draw_role(frame: &mut Frame<'_>, area: Rect, run: &MonitorFrame<'_>, role: Role) {
    let name = run.card_name(role).map(|name| format!(" · {name}")).unwrap_or_default();
    let block = Block::bordered().title(format!(" {}{name} ", run.role(role)));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    // The bars leave room for the names and the longest figure.
    let width = usize::from(inner.width).saturating_sub(33).clamp(4, 40);
    let (memory, busy) = (run.memory_share(role), run.busy(role));
    let largest = run.largest(role).map(|largest| format!("  largest: {largest}")).unwrap_or_default();
    let lines = vec![
        Line::from(format!("memory {} {}", bar(memory, width), run.memory(role))),
        Line::from(format!("busy   {} {}", bar(busy, width), share(busy, 0))),
        Line::from(format!("power  {}{largest}", run.power(role))),
    ];
    frame.render_widget(Paragraph::new(lines), inner);
}

fn draw_stages(frame: &mut Frame<'_>, area: Rect, run: &MonitorFrame<'_>) {
    let head = format!("{:<9}{:>8}{:>8}{:>12}", "ms", "mean", "p95", "stall");
    let rows = run.stages().into_iter().map(|row| {
        let stall = share(row.stall, 0);
        format!("{:<9}{:>8}{:>8}{stall:>12}", row.name, ms(row.mean_ms), ms(row.p95_ms))
    });
    draw_lines(frame, area, "Stages", std::iter::once(head).chain(rows).collect());
}

fn draw_slots(frame: &mut Frame<'_>, area: Rect, run: &MonitorFrame<'_>) {
    let width = usize::from(area.width).saturating_sub(24).clamp(4, 40);
    let mut lines = Vec::new();
    for ring in &run.recent.rings {
        let part = ring.ready as f64 / (ring.of as f64).max(1.0);
        lines.push(format!("{:<11} {} {}/{}", ring.name, bar(Some(part), width), ring.ready, ring.of));
        let states: Vec<String> = ring.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        lines.push(format!("  {}", states.join(", ")));
    }
    lines.push(run.feed());
    lines.push(format!("saved: {}", run.saved()));
    draw_lines(frame, area, "Slots", lines);
}

fn draw_lines(frame: &mut Frame<'_>, area: Rect, title: &str, lines: Vec<String>) {
    let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(format!(" {title} "))), area);
}

fn draw_curve(frame: &mut Frame<'_>, area: Rect, run: &MonitorFrame<'_>) {
    let block = Block::bordered().title(format!(" {} ", run.losses()));
    let points = run.state.curve.points();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return frame.render_widget(block, area);
    };
    let bounds = |(low, high): (f64, f64), (_, y): &(f64, f64)| (low.min(*y), high.max(*y));
    let (low, high) = points.iter().fold((f64::MAX, f64::MIN), bounds);
    // A flat curve needs a range above and below it.
    let (low, high) = if high > low { (low, high) } else { (low - 1.0, high + 1.0) };
    let (from, to) = (first.0, last.0.max(first.0 + 1.0));
    let data = Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).data(&points);
    let x = Axis::default().bounds([from, to]).labels([format!("{from:.0}"), format!("{to:.0}")]);
    let y = Axis::default().bounds([low, high]).labels([format!("{low:.2}"), format!("{high:.2}")]);
    frame.render_widget(Chart::new(vec![data]).x_axis(x).y_axis(y).block(block), area);
}

fn draw_alarms(frame: &mut Frame<'_>, area: Rect, alarms: &[(String, Tone)]) {
    let line = |(text, tone): &(String, Tone)| {
        let sign = if *tone == Tone::Bad { " ⚠ " } else { " · " };
        Line::from(vec![Span::raw(sign), Span::raw(text.clone())]).style(style(*tone))
    };
    let lines = match alarms.is_empty() {
        true => vec![Line::from(" No alarms").style(Modifier::DIM)],
        false => alarms.iter().map(line).collect(),
    };
    frame.render_widget(Paragraph::new(lines), area);
}

fn foot_text(run: &MonitorFrame<'_>) -> String {
    match run.share_read {
        part if part < 1.0 => format!(" reading the log: {:.0} %   q quits", 100.0 * part),
        _ => " q quits; the run continues".to_owned(),
    }
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Good => Style::default().fg(Color::Green),
        Tone::Plain => Style::default(),
        Tone::Bad => Style::default().fg(Color::Yellow),
    }
}

/// Replaces every character by ASCII.
fn make_plain(frame: &mut Frame<'_>) {
    for cell in &mut frame.buffer_mut().content {
        if !cell.symbol().is_ascii() {
            let plain = cell.symbol().chars().next().map_or(' ', plain_char);
            cell.set_char(plain);
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use tandem_events::RunEvent;

    use super::*;
    use crate::monitor::liveness::RunStatus;
    use crate::monitor::run_state::RunState;
    use crate::monitor::run_state::tests::{pair, ranks, state_of};

    /// The lines of the run on a terminal of that size.
    fn drawn(state: &RunState, (width, height): (u16, u16), is_plain: bool) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let run = MonitorFrame {
            recent: state.recent_figures(),
            status: RunStatus::Running { silent: None },
            watts: [None, Some(412.4)],
            log: "voice/run.jsonl".into(),
            share_read: 1.0,
            state,
        };
        terminal.draw(|frame| draw(frame, &run, is_plain)).unwrap();
        let cells = terminal.backend().buffer().content();
        cells.chunks(usize::from(width)).map(|row| row.iter().map(|cell| cell.symbol()).collect()).collect()
    }

    #[track_caller]
    fn shows(lines: &[String], parts: &[&str]) {
        for part in parts {
            assert!(lines.iter().any(|line| line.contains(part)), "{part:?} is not in\n{}", lines.join("\n"));
        }
    }

    fn leaky() -> RunState {
        let mut events = pair(250);
        events.push((0, RunEvent::Note { text: "decode threads 2 → 3".into() }));
        events.push((0, RunEvent::LimitExceeded { card: 1, bytes: 20 << 30, limit_bytes: 16 << 30 }));
        state_of(events)
    }

    #[test]
    fn everything_fits_in_80_by_24() {
        let lines = drawn(&leaky(), (80, 24), false);
        shows(&lines, &["tandem monitor  voice/run.jsonl", "● running"]);
        shows(&lines, &["Step 250 of 300, epoch 3 of 500, 5 s", "50.00 steps/s", "stall 25.0 %"]);
        shows(&lines, &["Data GPU 0 · NVIDIA H200", "4096/8192 MB (50.0 %)", "Model GPU 1", "75 %", "power  412 W"]);
        shows(&lines, &["load        20.00   20.00        25 %", "data slots", "2 decode threads, peer"]);
        shows(&lines, &["loss 0.016", "Validation", "⚠ [Step 250] the process uses 20480 MB on GPU 1", "q quits"]);
    }

    #[test]
    fn several_ranks_have_a_line_with_the_slowest() {
        let four = state_of(ranks(60, &[21, 20, 0, 22]));
        let slowest = "rank 2 is the slowest (10 % of each step)";
        let all = "Ranks 4  waiting 0: 2.1 ms  1: 2.0 ms  2: 0.0 ms  3: 2.2 ms  ";
        shows(&drawn(&four, (120, 40), false), &[&format!("{all}{slowest}")]);
        let lines = drawn(&four, (80, 24), false);
        shows(&lines, &[&format!("Ranks 4  mean wait 1.6 ms  {slowest} ")]);
        shows(&lines, &["Data GPU 0", "train ", "loss 0.067", "No alarms", "q quits"]);
        shows(&drawn(&four, (40, 10), false), &[slowest.split_at(40).0]);
        let alike = state_of(ranks(60, &[21, 21, 21, 21]));
        shows(&drawn(&alike, (80, 24), false), &["Ranks 4  waiting 0: 2.1 ms  1: 2.1 ms  2: 2.1 ms  3: 2.1 ms "]);
    }

    #[test]
    fn a_run_with_one_rank_has_no_line_for_ranks() {
        for size in [(80, 24), (40, 10)] {
            let lines = drawn(&leaky(), size, false);
            assert!(!lines.iter().any(|line| line.to_lowercase().contains("rank")), "{}", lines.join("\n"));
        }
    }

    #[test]
    fn a_large_terminal_has_room_for_notes_too() {
        shows(
            &drawn(&leaky(), (120, 40), false),
            &["⚠ [Step 250] the process uses", "· [Step 250] decode threads 2 → 3"],
        );
    }

    #[test]
    fn a_small_terminal_has_the_most_important_lines() {
        let lines = drawn(&leaky(), (40, 10), false);
        shows(&lines, &["running", "Step 250 of 300", "50.00 steps/s, stall 25.0 %", "loss 0.016"]);
        shows(&lines, &["Data GPU 0: 4096/8192 MB (50.0 %)", "[Step 250] the process uses", "q quits"]);
    }

    #[test]
    fn a_terminal_without_utf8_gets_ascii() {
        for size in [(80, 24), (40, 10)] {
            let lines = drawn(&leaky(), size, true);
            assert!(lines.iter().all(|line| line.is_ascii()), "{}", lines.join("\n"));
        }
    }

    #[test]
    fn any_size_and_any_log_can_be_drawn() {
        for (width, height) in [(1, 1), (2, 3), (19, 200), (200, 4), (70, 20), (69, 20), (300, 100)] {
            drawn(&leaky(), (width, height), false);
            drawn(&RunState::default(), (width, height), true);
            drawn(&state_of(pair(1)), (width, height), false);
            drawn(&state_of(ranks(60, &[0, 50])), (width, height), false);
        }
    }
}

//! A run on a terminal: one picture, in as much room as there is. Works in 80 columns and 24 lines; below that the lines
//! that matter most, without frames.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph};
use tandem_events::Role;

use super::figures::{MonitorFrame, Tone, bar, ms, plain_char, share};

/// Below this there are no frames.
const LEAST_WIDTH: u16 = 70;
const LEAST_HEIGHT: u16 = 20;
/// Lines inside the frame of a role, and of the stages.
const ROLE_LINES: u16 = 3;
const STAGE_LINES: u16 = 6;
/// Lines of alarms: as many as there are, and room for.
const MOST_ALARMS: u16 = 8;

/// Draws the whole of it.
pub(super) fn draw(frame: &mut Frame<'_>, picture: &MonitorFrame<'_>, is_plain: bool) {
    let area = frame.area();
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        draw_small(frame, picture);
    } else {
        draw_framed(frame, picture);
    }
    if is_plain {
        make_plain(frame);
    }
}

fn draw_framed(frame: &mut Frame<'_>, picture: &MonitorFrame<'_>) {
    let area = frame.area();
    // What is left behind the frames that are always there, less a chart worth looking at.
    let spare = area.height.saturating_sub(2 + ROLE_LINES + 2 + STAGE_LINES + 2 + 5 + 1);
    let alarms = picture.alarms(usize::from(spare.clamp(1, MOST_ALARMS)));
    let [title, summary, roles, middle, lower, told, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(ROLE_LINES + 2),
        Constraint::Length(STAGE_LINES + 2),
        Constraint::Min(4),
        Constraint::Length(alarms.len().max(1) as u16),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(frame, title, picture);
    frame.render_widget(Line::from(summary_text(picture)).style(Modifier::BOLD), summary);
    let [data, model] = Layout::horizontal([Constraint::Fill(1); 2]).areas(roles);
    draw_role(frame, data, picture, Role::Data);
    draw_role(frame, model, picture, Role::Model);
    let [stages, slots] = Layout::horizontal([Constraint::Fill(1); 2]).areas(middle);
    draw_stages(frame, stages, picture);
    draw_slots(frame, slots, picture);
    let [curve, held_out] = Layout::horizontal([Constraint::Fill(2), Constraint::Fill(1)]).areas(lower);
    draw_curve(frame, curve, picture);
    draw_lines(frame, held_out, "Held out", picture.held_out());
    draw_alarms(frame, told, &alarms);
    frame.render_widget(Line::from(foot_text(picture)).style(Modifier::DIM), foot);
}

/// The lines that matter most, as many as there is room for.
fn draw_small(frame: &mut Frame<'_>, picture: &MonitorFrame<'_>) {
    let area = frame.area();
    let (life, tone) = picture.life();
    let mut lines = vec![Line::from(life).style(style(tone)), Line::from(format!("Step {}", picture.step()))];
    lines.push(Line::from(format!("{}, stall {}", picture.steps_per_s(), picture.stall())));
    lines.push(Line::from(picture.losses()));
    for role in Role::BOTH {
        lines.push(Line::from(format!("{}: {}", picture.role(role), picture.memory(role))));
    }
    lines.extend(picture.alarms(3).into_iter().map(|(text, tone)| Line::from(text).style(style(tone))));
    lines.truncate(usize::from(area.height.saturating_sub(1)));
    lines.push(Line::from("q quits").style(Modifier::DIM));
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, picture: &MonitorFrame<'_>) {
    let (life, tone) = picture.life();
    let life = format!("● {life} ");
    let width = (life.chars().count() as u16).min(area.width);
    let [left, right] = Layout::horizontal([Constraint::Min(0), Constraint::Length(width)]).areas(area);
    let what = picture.what();
    let title = format!(" tandem monitor  {}  {what}", picture.log.display());
    frame.render_widget(Line::from(title).style(Modifier::REVERSED), left);
    frame.render_widget(Line::from(life).style(style(tone).add_modifier(Modifier::REVERSED)), right);
}

fn summary_text(picture: &MonitorFrame<'_>) -> String {
    let (pace, stall) = (picture.steps_per_s(), picture.stall());
    format!(" Step {}  {pace}  stall {stall}  variation {}", picture.step(), picture.variation())
}

fn draw_role(frame: &mut Frame<'_>, area: Rect, picture: &MonitorFrame<'_>, role: Role) {
    let name = picture.card_name(role).map(|name| format!(" · {name}")).unwrap_or_default();
    let block = Block::bordered().title(format!(" {}{name} ", picture.role(role)));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    // Names and the longest figure beside the bars.
    let width = usize::from(inner.width).saturating_sub(33).clamp(4, 40);
    let (memory, busy) = (picture.memory_share(role), picture.busy(role));
    let largest = picture.largest(role).map(|largest| format!("  most: {largest}")).unwrap_or_default();
    let lines = vec![
        Line::from(format!("memory {} {}", bar(memory, width), picture.memory(role))),
        Line::from(format!("busy   {} {}", bar(busy, width), share(busy, 0))),
        Line::from(format!("power  {}{largest}", picture.power(role))),
    ];
    frame.render_widget(Paragraph::new(lines), inner);
}

fn draw_stages(frame: &mut Frame<'_>, area: Rect, picture: &MonitorFrame<'_>) {
    let head = format!("{:<9}{:>8}{:>8}{:>12}", "ms", "mean", "p95", "waited for");
    let rows = picture.stages().into_iter().map(|row| {
        let waited = share(row.share, 0);
        format!("{:<9}{:>8}{:>8}{waited:>12}", row.name, ms(row.mean_ms), ms(row.p95_ms))
    });
    draw_lines(frame, area, "Stages", std::iter::once(head).chain(rows).collect());
}

fn draw_slots(frame: &mut Frame<'_>, area: Rect, picture: &MonitorFrame<'_>) {
    let width = usize::from(area.width).saturating_sub(24).clamp(4, 40);
    let mut lines = Vec::new();
    for ring in &picture.lately.rings {
        let part = ring.ready as f64 / (ring.of as f64).max(1.0);
        lines.push(format!("{:<11} {} {}/{}", ring.name, bar(Some(part), width), ring.ready, ring.of));
        let states: Vec<String> = ring.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
        lines.push(format!("  {}", states.join(", ")));
    }
    lines.push(picture.feed());
    lines.push(format!("kept {}", picture.kept()));
    draw_lines(frame, area, "Slots", lines);
}

fn draw_lines(frame: &mut Frame<'_>, area: Rect, title: &str, lines: Vec<String>) {
    let lines: Vec<Line<'_>> = lines.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(format!(" {title} "))), area);
}

fn draw_curve(frame: &mut Frame<'_>, area: Rect, picture: &MonitorFrame<'_>) {
    let block = Block::bordered().title(format!(" {} ", picture.losses()));
    let points = picture.state.curve.points();
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return frame.render_widget(block, area);
    };
    let bounds = |(low, high): (f64, f64), (_, y): &(f64, f64)| (low.min(*y), high.max(*y));
    let (low, high) = points.iter().fold((f64::MAX, f64::MIN), bounds);
    // A flat curve needs room above and below it.
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

fn foot_text(picture: &MonitorFrame<'_>) -> String {
    match picture.share_read {
        part if part < 1.0 => format!(" reading the log: {:.0} %   q quits", 100.0 * part),
        _ => " q quits; the run goes on".to_owned(),
    }
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Good => Style::default().fg(Color::Green),
        Tone::Plain => Style::default(),
        Tone::Bad => Style::default().fg(Color::Yellow),
    }
}

/// Every sign as a character that any terminal has.
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
    use crate::monitor::run_state::RunState;
    use crate::monitor::run_state::tests::{pair, state_of};
    use crate::monitor::sign_of_life::Life;

    /// The run on a terminal of that size, line by line.
    fn drawn(state: &RunState, (width, height): (u16, u16), is_plain: bool) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let picture = MonitorFrame {
            lately: state.lately(),
            life: Life::Running { silent: None },
            watts: [None, Some(412.4)],
            log: "voice/run.jsonl".into(),
            share_read: 1.0,
            state,
        };
        terminal.draw(|frame| draw(frame, &picture, is_plain)).unwrap();
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
        events.push((0, RunEvent::Note { text: "decode threads 2 -> 3".into() }));
        events.push((0, RunEvent::Breach { card: 1, bytes: 20 << 30, limit_bytes: 16 << 30 }));
        state_of(events)
    }

    #[test]
    fn everything_fits_in_80_by_24() {
        let lines = drawn(&leaky(), (80, 24), false);
        shows(&lines, &["tandem monitor  voice/run.jsonl", "● running"]);
        shows(&lines, &["Step 250 of 300, epoch 3 of 500, 5 s", "50.00 steps/s", "stall 25.0 %"]);
        shows(&lines, &["Data GPU 0 · NVIDIA H200", "4096/8192 MB (50.0 %)", "Model GPU 1", "75 %", "power  412 W"]);
        shows(&lines, &["load        20.00   20.00        25 %", "data slots", "2 decode threads, peer"]);
        shows(&lines, &["loss 0.016", "Held out", "⚠ [Step 250] the process holds 20480 MB on card 1", "q quits"]);
    }

    #[test]
    fn a_large_terminal_has_room_for_remarks_too() {
        shows(
            &drawn(&leaky(), (120, 40), false),
            &["⚠ [Step 250] the process holds", "· [Step 250] decode threads 2 -> 3"],
        );
    }

    #[test]
    fn a_small_terminal_has_what_matters_most() {
        let lines = drawn(&leaky(), (40, 10), false);
        shows(&lines, &["running", "Step 250 of 300", "50.00 steps/s, stall 25.0 %", "loss 0.016"]);
        shows(&lines, &["Data GPU 0: 4096/8192 MB (50.0 %)", "[Step 250] the process holds", "q quits"]);
    }

    #[test]
    fn a_terminal_without_utf8_gets_ascii() {
        for size in [(80, 24), (40, 10)] {
            let lines = drawn(&leaky(), size, true);
            assert!(lines.iter().all(|line| line.is_ascii()), "{}", lines.join("\n"));
        }
    }

    #[test]
    fn no_size_and_no_log_is_too_small() {
        for (width, height) in [(1, 1), (2, 3), (19, 200), (200, 4), (70, 20), (69, 20), (300, 100)] {
            drawn(&leaky(), (width, height), false);
            drawn(&RunState::default(), (width, height), true);
            drawn(&state_of(pair(1)), (width, height), false);
        }
    }
}

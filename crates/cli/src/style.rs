//! How printed text looks: UTF-8 or ASCII, with or without colours, with the prefix of simulated runs.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, IsTerminal};

use crate::ranks::other_rank;

/// The values of `--color`.
pub(crate) const COLOR_WORDS: [&str; 3] = ["auto", "always", "never"];

/// When text is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UseColor {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    Always,
    Never,
}

/// Where text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Out,
    Err,
}

/// How an error is printed. Read from the raw command line, so that it also holds when parsing fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputStyle {
    pub(crate) json: bool,
    pub(crate) simulated: bool,
    pub(crate) color: UseColor,
    /// The command trains: it may be one of several ranks.
    pub(crate) trains: bool,
}

/// How lines look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// The terminal shows ASCII only.
    pub(crate) plain: bool,
    /// Every line starts with `[simulated] `.
    pub(crate) simulated: bool,
    /// Every line starts with `[rank 1] `, if this is one of several ranks and not the first.
    pub(crate) rank: Option<u32>,
    pub(crate) color: UseColor,
}

impl OutputStream {
    pub(crate) fn is_terminal(self) -> bool {
        match self {
            OutputStream::Out => io::stdout().is_terminal(),
            OutputStream::Err => io::stderr().is_terminal(),
        }
    }
}

impl UseColor {
    fn named(word: &str) -> Option<UseColor> {
        let all = [UseColor::Auto, UseColor::Always, UseColor::Never];
        COLOR_WORDS.iter().zip(all).find(|(name, _)| **name == word).map(|(_, color)| color)
    }

    /// Whether text to `stream` is coloured.
    pub(crate) fn is_on(self, stream: OutputStream) -> bool {
        match self {
            UseColor::Always => true,
            UseColor::Never => false,
            UseColor::Auto => {
                let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
                stream.is_terminal() && !is_set("NO_COLOR") && !is_dumb()
            }
        }
    }
}

/// Whether the terminal understands no escape sequences.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

impl OutputStyle {
    pub(crate) fn of(words: &[OsString]) -> OutputStyle {
        let is_sim = |word: &OsString| word == "--sim" || word.to_string_lossy().starts_with("--sim=");
        let after = words.iter().zip(words.iter().skip(1)).filter(|(word, _)| *word == "--color");
        let after = after.map(|(_, value)| value.to_string_lossy().into_owned());
        let joined = words.iter().filter_map(|word| Some(word.to_str()?.strip_prefix("--color=")?.to_owned()));
        OutputStyle {
            trains: words.get(1).is_some_and(|word| word == "train"),
            json: words.iter().any(|word| word == "--json"),
            simulated: words.iter().any(is_sim),
            color: after.chain(joined).find_map(|word| UseColor::named(&word)).unwrap_or_default(),
        }
    }

    pub(crate) fn look(self) -> Look {
        Look {
            plain: is_plain(),
            simulated: self.simulated,
            rank: other_rank().filter(|_| self.trains),
            color: self.color,
        }
    }
}

impl Look {
    /// The lines as they are written to `stream`: prefixed, without control characters, in ASCII or coloured.
    pub(crate) fn decorate(&self, text: &str, stream: OutputStream) -> String {
        decorate(text, *self, self.color.is_on(stream))
    }
}

fn decorate(text: &str, look: Look, is_colored: bool) -> String {
    let rank = look.rank.map(|rank| format!("[rank {rank}] ")).unwrap_or_default();
    let prefix = format!("{rank}{}", if look.simulated { "[simulated] " } else { "" });
    let line = |line: &str| {
        let mut shown = without_controls(line, '\t', |c| c.escape_unicode().to_string()).into_owned();
        let color = COLORS.iter().find(|(sign, _)| line.trim_start().starts_with(sign)).filter(|_| is_colored);
        if look.plain {
            for (sign, ascii) in ASCII_SIGNS {
                shown = shown.replace(sign, ascii);
            }
        }
        match color {
            Some((_, code)) => format!("\u{1b}[{code}m{prefix}{shown}\u{1b}[0m\n"),
            None => format!("{prefix}{shown}\n"),
        }
    };
    text.lines().map(line).collect()
}

/// The headings of a help page in bold.
pub(crate) fn with_bold_headings(page: &str) -> String {
    let line = |line: &str| match line.ends_with(':') && !line.starts_with(' ') {
        true => format!("\u{1b}[1m{line}\u{1b}[0m\n"),
        false => format!("{line}\n"),
    };
    page.lines().map(line).collect()
}

/// Whether the locale is not UTF-8. The first of these variables that is set decides, as in the C library.
pub(crate) fn is_plain() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default().to_lowercase();
    !(locale.contains("utf-8") || locale.contains("utf8"))
}

/// Shows control characters instead of sending them: ids, speakers and paths come from files that anybody may have
/// written, and an escape sequence in one of them would be obeyed by the terminal.
pub(crate) fn without_controls(text: &str, kept: char, shown: impl Fn(char) -> String) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && c != kept;
    if !text.contains(is_obeyed) {
        return text.into();
    }
    text.chars().map(|c| if is_obeyed(c) { shown(c) } else { c.to_string() }).collect()
}

/// The signs that lines start with, and the codes of their colours: green, red, yellow.
const COLORS: [(&str, u8); 4] = [("✅", 32), ("🎉", 32), ("❌", 31), ("⚠️", 33)];

const ASCII_SIGNS: [(&str, &str); 18] = [
    ("✅", "[ok]"),
    ("🎉", "[ok]"),
    ("❌", "[!!]"),
    ("⚠️", "[!]"),
    ("🎯", "[*]"),
    ("🚀", "[>]"),
    ("🕐", "[..]"),
    ("×", "x"),
    ("÷", "/"),
    ("≤", "<="),
    ("≥", ">="),
    ("µ", "u"),
    ("→", "->"),
    ("–", "-"),
    ("—", "-"),
    ("…", "..."),
    ("█", "#"),
    ("░", "-"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn look(plain: bool, simulated: bool) -> Look {
        Look { plain, simulated, rank: None, color: UseColor::Never }
    }

    #[test]
    fn plain_terminals_get_ascii_and_simulated_runs_a_prefix() {
        assert_eq!(decorate("✅ a\n❌ b", look(true, false), false), "[ok] a\n[!!] b\n");
        assert_eq!(decorate("✅ a\nb\n", look(false, true), false), "[simulated] ✅ a\n[simulated] b\n");
        let second = Look { rank: Some(1), ..look(false, true) };
        assert_eq!(decorate("⚠️ a", second, false), "[rank 1] [simulated] ⚠️ a\n");
        assert_eq!(decorate("\u{1b}[2Jid\u{9b}5m\tb", look(false, false), false), "\\u{1b}[2Jid\\u{9b}5m\tb\n");
    }

    #[test]
    fn lines_have_the_colour_of_their_sign() {
        assert_eq!(
            decorate("   ⚠️ a\nb", look(false, true), true),
            "\u{1b}[33m[simulated]    ⚠️ a\u{1b}[0m\n[simulated] b\n"
        );
        assert_eq!(decorate("❌ b", look(true, false), true), "\u{1b}[31m[!!] b\u{1b}[0m\n");
        assert_eq!(with_bold_headings("Data:\n  a:\n"), "\u{1b}[1mData:\u{1b}[0m\n  a:\n");
    }

    #[test]
    fn the_colour_is_read_before_the_command_line_is_parsed() {
        let check = |line: &str, expected| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(OutputStyle::of(&words).color, expected, "{line}");
        };
        check("tandem plan --color never", UseColor::Never);
        check("tandem --color=always plan --frobnicate", UseColor::Always);
        check("tandem plan --color mauve", UseColor::Auto);
        check("tandem plan --color", UseColor::Auto);
    }
}

//! The pages of `-h` and `--help`, made from the flags of each command: `-h` is one screen of 24 lines and 100 columns
//! with the flags that matter most, `--help` lists all of them under headings.

use clap::{Arg, Command};
use tandem_plan::setting::Setting;

use crate::command_help;
use crate::flag_table::{FlagGroup, FlagUse, use_of};

/// The widest page. Longer lines are hard to read.
pub(crate) const MAX_COLUMNS: usize = 100;
/// Flags without a heading.
const FLAGS: &str = "Flags";
const ARGUMENTS: &str = "Arguments";

/// Gives every command of the tree its two pages.
pub(crate) fn with_pages(tree: Command, columns: usize) -> Command {
    let mut built = tree.clone();
    // Flags of all commands are known, and their usage lines can be made.
    built.build();
    add_pages(tree, &mut built, "", columns.clamp(40, MAX_COLUMNS))
}

fn add_pages(mut command: Command, built: &mut Command, path: &str, columns: usize) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        let path = format!("{path} {name}").trim_start().to_owned();
        if let Some(sub) = built.find_subcommand_mut(&name) {
            command = command.mut_subcommand(&name, |command| add_pages(command, sub, &path, columns));
        }
    }
    let page = HelpPage::of(built, path);
    // The only part of a template that differs between `-h` and `--help`.
    command.help_template("{after-help}").after_help(page.short(columns)).after_long_help(page.full(columns))
}

/// What the pages of one command say.
struct HelpPage {
    /// `train`, `corpus check`; empty for `tandem` itself.
    path: String,
    about: String,
    usage: String,
    entries: Vec<Entry>,
    /// Flags that are accepted without an effect.
    accepted: Vec<String>,
    commands: Vec<(String, String)>,
    /// A list of the command's own.
    list: String,
    examples: Vec<&'static str>,
    main_flags: &'static [&'static str],
}

/// A flag or an argument.
struct Entry {
    name: String,
    heading: String,
    /// `-q, --quiet`
    spec: String,
    text: String,
    /// The same flag is on every command.
    is_global: bool,
}

impl HelpPage {
    fn of(command: &mut Command, path: &str) -> HelpPage {
        let usage = command.render_usage().to_string();
        let is_accepted = |arg: &&Arg| {
            let setting = arg.get_long().and_then(Setting::of_flag);
            setting.is_some_and(|setting| use_of(setting.id, path) == FlagUse::Accepted)
        };
        let shown = || command.get_arguments().filter(|arg| is_listed(arg));
        let help = command_help::of(path);
        HelpPage {
            path: path.to_owned(),
            about: command.get_about().map(ToString::to_string).unwrap_or_default(),
            usage,
            entries: shown().filter(|arg| !is_accepted(arg)).map(Entry::of).collect(),
            accepted: shown().filter(is_accepted).filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect(),
            commands: command
                .get_subcommands()
                .filter(|sub| sub.get_name() != "help")
                .map(|sub| {
                    let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
                    (sub.get_name().to_owned(), before(first_clause(&about), ": ").to_owned())
                })
                .collect(),
            list: command.get_after_help().map(ToString::to_string).unwrap_or_default(),
            examples: help.map(|help| help.examples.to_vec()).unwrap_or_default(),
            main_flags: help.map_or(&[], |help| help.main_flags),
        }
    }

    /// The page of `-h`.
    fn short(&self, columns: usize) -> String {
        let main: Vec<&Entry> = match self.main_flags {
            [] => self.entries.iter().filter(|entry| !entry.is_global).collect(),
            names => names.iter().filter_map(|name| self.entries.iter().find(|entry| entry.name == *name)).collect(),
        };
        let mut text = self.head(columns);
        let rows: Vec<(&str, &str)> = main.iter().map(|entry| (entry.spec.as_str(), entry.text.as_str())).collect();
        text += &table(&rows, columns, brief);
        self.add_lists(&mut text, columns);
        let tandem = format!("tandem {}", self.path).trim_end().to_owned();
        text + &match self.commands.is_empty() {
            true => format!("\nAll flags: {tandem} --help\n"),
            false => format!("\nFlags of a command: {tandem} COMMAND --help\n"),
        }
    }

    /// The page of `--help`.
    fn full(&self, columns: usize) -> String {
        let mut text = self.head(columns);
        for heading in self.headings() {
            let mut entries: Vec<&Entry> = self.entries.iter().filter(|entry| entry.heading == heading).collect();
            // The flags of `-h` come first.
            let place = |entry: &&Entry| self.main_flags.iter().position(|name| *name == entry.name);
            entries.sort_by_key(|entry| place(entry).unwrap_or(usize::MAX));
            let rows: Vec<(&str, &str)> =
                entries.iter().map(|entry| (entry.spec.as_str(), entry.text.as_str())).collect();
            text += &format!("{heading}:\n{}\n", table(&rows, columns, |text, _| text.to_owned()));
        }
        if !self.accepted.is_empty() {
            let all = self.accepted.join(", ");
            text += &wrapped(&format!("Accepted without effect, so that a line of train works here: {all}"), columns);
        }
        let mut text = text.trim_end().to_owned() + "\n";
        self.add_lists(&mut text, columns);
        text
    }

    fn head(&self, columns: usize) -> String {
        format!("{}\n{}\n\n", wrapped(&self.about, columns), self.usage)
    }

    /// The headings in use: arguments and the command's own flags first, then the groups of the settings.
    fn headings(&self) -> Vec<&str> {
        let groups: Vec<&str> = FlagGroup::ALL.iter().map(|group| group.heading()).collect();
        let mut found: Vec<&str> = Vec::new();
        for entry in &self.entries {
            if !found.contains(&entry.heading.as_str()) {
                found.push(&entry.heading);
            }
        }
        // A stable sort: others stay in the order of the flags.
        found.sort_by_key(|heading| match *heading {
            ARGUMENTS => 0,
            heading => groups.iter().position(|group| *group == heading).map_or(1, |at| at + 2),
        });
        found
    }

    fn add_lists(&self, text: &mut String, columns: usize) {
        let separate = |text: &mut String| {
            if !text.ends_with("\n\n") {
                text.push('\n');
            }
        };
        if !self.commands.is_empty() {
            let rows: Vec<(&str, &str)> =
                self.commands.iter().map(|(name, about)| (name.as_str(), about.as_str())).collect();
            separate(text);
            *text += &format!("Commands:\n{}", table(&rows, columns, |text, _| text.to_owned()));
        }
        if !self.list.is_empty() {
            separate(text);
            *text += &format!("{}\n", self.list.trim_end());
        }
        if !self.examples.is_empty() {
            separate(text);
            *text += "Examples:\n";
            self.examples.iter().for_each(|example| *text += &format!("  {example}\n"));
        }
    }
}

impl Entry {
    fn of(arg: &Arg) -> Entry {
        let value = match (arg.get_value_names(), arg.get_num_args()) {
            (Some([name, ..]), Some(count)) if count.takes_values() => match (count.min_values(), count.max_values()) {
                (0, _) => format!(" [<{name}>]"),
                (_, 1) => format!(" <{name}>"),
                _ => format!(" <{name}>..."),
            },
            _ => String::new(),
        };
        let spec = match (arg.get_short(), arg.get_long()) {
            (Some(short), Some(long)) => format!("-{short}, --{long}{value}"),
            (None, Some(long)) => format!("    --{long}{value}"),
            (Some(short), None) => format!("-{short}{value}"),
            // A positional argument.
            (None, None) => match arg.is_required_set() {
                true => value.trim_start().to_owned(),
                false => format!("[{}]", value.trim_start().replace(['<', '>'], "")),
            },
        };
        let heading = match (arg.is_positional(), arg.get_help_heading()) {
            (true, _) => ARGUMENTS,
            (false, heading) => heading.unwrap_or(FLAGS),
        };
        let name = arg.get_long().unwrap_or(arg.get_id().as_str());
        let (name, heading) = (name.to_owned(), heading.to_owned());
        Entry { name, heading, spec, text: text_of(arg), is_global: arg.is_global_set() }
    }
}

/// Whether a page lists the flag by itself.
fn is_listed(arg: &Arg) -> bool {
    let is_off_flag = |long: &str| Setting::of_flag(long).is_some_and(|setting| setting.off_flag() == Some(long));
    let is_help = matches!(arg.get_id().as_str(), "help" | "version");
    !arg.is_hide_set() && !is_help && !arg.get_long().is_some_and(is_off_flag)
}

/// The help of a flag, its values and its default.
fn text_of(arg: &Arg) -> String {
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let values = arg.get_possible_values();
    let takes_value = arg.get_num_args().is_some_and(|count| count.takes_values());
    if takes_value && !values.is_empty() {
        let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        let at = text.find(DEFAULT).unwrap_or(text.len());
        text.insert_str(at, &format!(" [values: {}]", names.join(", ")));
    }
    if let [default] = arg.get_default_values()
        && takes_value
    {
        text += &format!("{DEFAULT}{}]", default.to_string_lossy());
    }
    text
}

/// Where a help text states its default.
const DEFAULT: &str = " [default: ";
const VALUES: &str = " [values: ";

/// The first clause of a text with its values and its default, as much of it as fits.
fn brief(text: &str, columns: usize) -> String {
    let at = [VALUES, DEFAULT].iter().filter_map(|part| text.find(part)).min().unwrap_or(text.len());
    let (prose, rest) = text.split_at(at);
    let clause = first_clause(prose);
    let (subject, values) = (before(clause, ": "), before(rest, DEFAULT));
    let candidates = [(clause, rest), (clause, values), (subject, rest), (subject, values), (clause, "")];
    let fits = |(prose, end): &(&str, &str)| prose.chars().count() + end.chars().count() <= columns;
    let (prose, end) = candidates.into_iter().find(fits).unwrap_or((subject, ""));
    format!("{prose}{end}")
}

fn first_clause(text: &str) -> &str {
    before(text, "; ")
}

fn before<'a>(text: &'a str, end: &str) -> &'a str {
    text.split(end).next().unwrap_or(text)
}

/// Rows of two columns; the second is shortened by `fit` and then wrapped.
fn table(rows: &[(&str, &str)], columns: usize, fit: impl Fn(&str, usize) -> String) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let indent = width + 4;
    let room = columns.saturating_sub(indent).max(20);
    let mut text = String::new();
    for (name, about) in rows {
        let about = wrapped(&fit(about, room), room);
        let mut lines = about.lines();
        text += format!("  {name:<width$}  {}", lines.next().unwrap_or_default()).trim_end();
        text.push('\n');
        lines.for_each(|line| text += &format!("{:indent$}{line}\n", ""));
    }
    text
}

/// The text in lines of at most `columns`, unless a word is longer.
fn wrapped(text: &str, columns: usize) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > columns {
            lines += &format!("{line}\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line += word;
    }
    lines + &format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_text_has_the_first_clause_and_what_fits_of_the_rest() {
        let text = "Preset of the model; millions of parameters: a 1 [values: a, b] [default: a]";
        assert_eq!(brief(text, 60), "Preset of the model [values: a, b] [default: a]");
        assert_eq!(brief(text, 40), "Preset of the model [values: a, b]");
        assert_eq!(brief(text, 20), "Preset of the model");
        assert_eq!(brief("Where to run: here or there [values: a, b]", 30), "Where to run [values: a, b]");
        assert_eq!(brief("Seconds", 20), "Seconds");
    }

    #[test]
    fn lines_are_wrapped_at_words() {
        assert_eq!(wrapped("one two three", 7), "one two\nthree\n");
        assert_eq!(wrapped("incomprehensible", 7), "incomprehensible\n");
        assert_eq!(
            table(&[("a", "one two"), ("bbb", "x")], 26, |text, _| text.to_owned()),
            "  a    one two\n  bbb  x\n"
        );
    }

    #[test]
    fn every_command_has_two_examples_and_its_main_flags_exist() {
        fn check(command: &mut Command, path: &str) {
            let help = command_help::of(path).unwrap_or_else(|| panic!("no help for {path:?}"));
            let page = HelpPage::of(command, path);
            for name in help.main_flags {
                assert!(page.entries.iter().any(|entry| entry.name == *name), "tandem {path} has no {name}");
            }
            let named = format!("tandem {path}");
            assert!(help.examples.iter().all(|example| example.contains(named.trim_end())), "{path}");
            let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
            for name in names.iter().filter(|name| *name != "help") {
                let path = format!("{path} {name}").trim_start().to_owned();
                check(command.find_subcommand_mut(name).unwrap(), &path);
            }
        }
        let mut tree = crate::args::command_tree();
        tree.build();
        check(&mut tree, "");
    }
}

//! `tandem man`: the manual page, or the pages of all commands in a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{ArgMatches, Command};
use clap_mangen::Man;

use crate::args::{command_tree, path};
use crate::command_help;
use crate::exit::Exit;
use crate::screen::{self, Screen};
use crate::whole_file::write_whole;

/// Arguments of `tandem man`.
pub(crate) struct ManArgs {
    /// Write all pages here instead of printing the first.
    folder: Option<PathBuf>,
}

/// A page and the name of its file.
struct ManPage {
    file: String,
    text: Vec<u8>,
}

pub(crate) fn command() -> Command {
    let output = path("output", "Write the pages of all commands to this folder instead").short('o');
    Command::new("man").about("Print the manual page of tandem").arg(output.value_name("DIR"))
}

pub(crate) fn parse(matches: &ArgMatches) -> ManArgs {
    ManArgs { folder: matches.get_one::<PathBuf>("output").cloned() }
}

pub(crate) fn run(args: &ManArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let pages = pages().context("cannot make the manual pages")?;
    match &args.folder {
        Some(folder) => write_all(&pages, folder, screen)?,
        None => pages.first().map_or(Ok(()), |page| screen::write(&String::from_utf8_lossy(&page.text)))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_all(pages: &[ManPage], folder: &Path, screen: &Screen) -> Result<(), Exit> {
    let refused =
        |error: std::io::Error| Exit::Usage(format!("❌ -o: cannot write the pages ({error}): {}", folder.display()));
    fs::create_dir_all(folder).map_err(refused)?;
    pages.iter().try_for_each(|page| write_whole(&folder.join(&page.file), &page.text)).map_err(refused)?;
    screen.print(&format!("✅ {} manual pages: {}", pages.len(), folder.display()))
}

/// The page of `tandem`, then those of its commands.
fn pages() -> std::io::Result<Vec<ManPage>> {
    let mut tree = command_tree().disable_help_subcommand(true);
    tree.build();
    let mut pages = Vec::new();
    add(&tree, "", &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, path: &str, pages: &mut Vec<ManPage>) -> std::io::Result<()> {
    pages.push(page(command, path)?);
    for sub in command.get_subcommands() {
        add(sub, format!("{path} {}", sub.get_name()).trim_start(), pages)?;
    }
    Ok(())
}

fn page(command: &Command, path: &str) -> std::io::Result<ManPage> {
    // The whole list of flags would be the synopsis otherwise.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let list = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let man = Man::new(command.clone().override_usage(usage).after_help(None::<&str>)).manual("Tandem");
    let mut text = Vec::new();
    man.render(&mut text)?;
    // A list begins with its title.
    let title = list.lines().next().unwrap_or_default().trim_end_matches(':').to_uppercase();
    text.extend(section(&title, list.lines().skip(1)));
    let examples = command_help::of(path).map(|help| help.examples.to_vec()).unwrap_or_default();
    text.extend(section("EXAMPLES", examples));
    Ok(ManPage { file: man.get_filename(), text })
}

/// A section of lines that are printed as they are.
fn section<'a>(title: &str, lines: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    // In roff a backslash is an escape, `-` is a hyphen, and a line must not begin with `.` or `'`.
    let line = |line: &str| format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-"));
    let lines: String = lines.into_iter().map(line).collect();
    if lines.is_empty() { Vec::new() } else { format!(".SH {title}\n.nf\n{lines}.fi\n").into_bytes() }
}

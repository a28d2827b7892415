//! The findings, section by section: printed at once, and collected for the file and the JSON document.

use serde_json::{Value, json};

use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// The findings so far.
pub(super) struct DoctorReport<'a> {
    screen: &'a Screen,
    sections: Vec<Section>,
    /// Temporary folders that are in use until the end.
    folders: Vec<Scratch>,
}

#[derive(Default)]
struct Section {
    title: String,
    findings: Vec<Finding>,
    /// Details for the file only.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckVerdict {
    Good,
    Note,
    Warning,
    Bad,
}

struct Finding {
    verdict: CheckVerdict,
    text: String,
    advice: Option<String>,
}

impl CheckVerdict {
    fn sign(self) -> &'static str {
        match self {
            CheckVerdict::Good => "✅ ",
            CheckVerdict::Note => "",
            CheckVerdict::Warning => "⚠️ ",
            CheckVerdict::Bad => "❌ ",
        }
    }

    fn slug(self) -> &'static str {
        match self {
            CheckVerdict::Good => "good",
            CheckVerdict::Note => "note",
            CheckVerdict::Warning => "warning",
            CheckVerdict::Bad => "bad",
        }
    }
}

impl<'a> DoctorReport<'a> {
    pub(super) fn new(screen: &'a Screen) -> DoctorReport<'a> {
        DoctorReport { screen, sections: Vec::new(), folders: Vec::new() }
    }

    /// Starts a section.
    pub(super) fn section(&mut self, title: &str) -> Result<(), Exit> {
        self.sections.push(Section { title: title.to_owned(), ..Section::default() });
        self.screen.progress(&format!("{}. {title}", self.sections.len()))
    }

    /// A check that passed.
    pub(super) fn good(&mut self, text: &str) -> Result<(), Exit> {
        self.find(CheckVerdict::Good, text, None)
    }

    /// Information, neither good nor bad.
    pub(super) fn note(&mut self, text: &str) -> Result<(), Exit> {
        self.find(CheckVerdict::Note, text, None)
    }

    /// Nothing fails because of it, but it could be better.
    pub(super) fn warning(&mut self, text: &str, advice: &str) -> Result<(), Exit> {
        self.find(CheckVerdict::Warning, text, Some(advice))
    }

    /// A check that failed.
    pub(super) fn bad(&mut self, text: &str, advice: &str) -> Result<(), Exit> {
        self.find(CheckVerdict::Bad, text, Some(advice))
    }

    /// Adds details to the file only.
    pub(super) fn text(&mut self, text: &str) {
        if let Some(section) = self.sections.last_mut().filter(|_| !text.trim().is_empty()) {
            section.text += text.trim_end();
            section.text.push('\n');
        }
    }

    /// Keeps a temporary folder until the end.
    pub(super) fn keep_until_end(&mut self, folder: Scratch) {
        self.folders.push(folder);
    }

    pub(super) fn num_failed(&self) -> usize {
        self.sections
            .iter()
            .flat_map(|section| &section.findings)
            .filter(|found| found.verdict == CheckVerdict::Bad)
            .count()
    }

    pub(super) fn has_passed(&self) -> bool {
        self.num_failed() == 0
    }

    /// The report file.
    pub(super) fn page(&self, header: &str, flags: &str) -> String {
        let mut page = format!("{header}\n{flags}\n");
        for (number, section) in (1..).zip(&self.sections) {
            page += &format!("\n{number}. {}\n", section.title);
            section.findings.iter().for_each(|finding| page += &finding.lines());
            if !section.text.is_empty() {
                page += "\n";
                section.text.lines().for_each(|line| page += &format!("{}\n", format!("    {line}").trim_end()));
            }
        }
        page
    }

    /// The sections for the JSON document.
    pub(super) fn json(&self) -> Vec<Value> {
        let finding = |found: &Finding| {
            let passed = found.verdict != CheckVerdict::Bad;
            json!({ "verdict": found.verdict.slug(), "passed": passed, "text": found.text, "advice": found.advice })
        };
        let section = |section: &Section| {
            let findings: Vec<Value> = section.findings.iter().map(finding).collect();
            json!({ "title": section.title, "checks": findings, "text": section.text })
        };
        self.sections.iter().map(section).collect()
    }

    fn find(&mut self, verdict: CheckVerdict, text: &str, advice: Option<&str>) -> Result<(), Exit> {
        let finding = Finding { verdict, text: text.to_owned(), advice: advice.map(str::to_owned) };
        let lines = finding.lines();
        if let Some(section) = self.sections.last_mut() {
            section.findings.push(finding);
        }
        // Warnings and failures are printed with `-q` too.
        match verdict {
            CheckVerdict::Good | CheckVerdict::Note => self.screen.progress(lines.trim_end()),
            CheckVerdict::Warning | CheckVerdict::Bad => self.screen.print(lines.trim_end()),
        }
    }
}

impl Finding {
    fn lines(&self) -> String {
        let mut lines = String::new();
        for (number, line) in self.text.lines().enumerate() {
            let sign = if number == 0 { self.verdict.sign() } else { "" };
            lines += &format!("   {sign}{line}\n");
        }
        match &self.advice {
            Some(advice) => format!("{lines}      What to do: {advice}\n"),
            None => lines,
        }
    }
}

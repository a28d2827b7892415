//! What was found, section by section: said on the screen as soon as it is known, kept for the file and the document.

use serde_json::{Value, json};

use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// What is found, and where it is told.
pub(super) struct Examination<'a> {
    screen: &'a Screen,
    sections: Vec<Section>,
    /// Files that are in use until the end.
    kept: Vec<Scratch>,
}

#[derive(Default)]
struct Section {
    title: String,
    findings: Vec<Finding>,
    /// What is too long for the screen.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Note,
    Warning,
    Bad,
}

struct Finding {
    verdict: Verdict,
    text: String,
    advice: Option<String>,
}

impl Verdict {
    fn sign(self) -> &'static str {
        match self {
            Verdict::Good => "✅ ",
            Verdict::Note => "",
            Verdict::Warning => "⚠️ ",
            Verdict::Bad => "❌ ",
        }
    }

    fn slug(self) -> &'static str {
        match self {
            Verdict::Good => "good",
            Verdict::Note => "note",
            Verdict::Warning => "warning",
            Verdict::Bad => "bad",
        }
    }
}

impl<'a> Examination<'a> {
    pub(super) fn new(screen: &'a Screen) -> Examination<'a> {
        Examination { screen, sections: Vec::new(), kept: Vec::new() }
    }

    /// What follows stands under this title.
    pub(super) fn section(&mut self, title: &str) -> Result<(), Exit> {
        self.sections.push(Section { title: title.to_owned(), ..Section::default() });
        self.screen.progress(&format!("{}. {title}", self.sections.len()))
    }

    /// As it should be.
    pub(super) fn good(&mut self, text: &str) -> Result<(), Exit> {
        self.find(Verdict::Good, text, None)
    }

    /// Worth knowing, neither good nor bad.
    pub(super) fn note(&mut self, text: &str) -> Result<(), Exit> {
        self.find(Verdict::Note, text, None)
    }

    /// Nothing fails by it, but it could be better.
    pub(super) fn warning(&mut self, text: &str, advice: &str) -> Result<(), Exit> {
        self.find(Verdict::Warning, text, Some(advice))
    }

    /// Something fails by it.
    pub(super) fn bad(&mut self, text: &str, advice: &str) -> Result<(), Exit> {
        self.find(Verdict::Bad, text, Some(advice))
    }

    /// For the file alone.
    pub(super) fn text(&mut self, text: &str) {
        if let Some(section) = self.sections.last_mut().filter(|_| !text.trim().is_empty()) {
            section.text += text.trim_end();
            section.text.push('\n');
        }
    }

    /// Keeps files until the end.
    pub(super) fn keep(&mut self, folder: Scratch) {
        self.kept.push(folder);
    }

    pub(super) fn num_failed(&self) -> usize {
        self.sections.iter().flat_map(|section| &section.findings).filter(|found| found.verdict == Verdict::Bad).count()
    }

    pub(super) fn has_passed(&self) -> bool {
        self.num_failed() == 0
    }

    /// Everything as one text.
    pub(super) fn page(&self, header: &str, flags: &str) -> String {
        let mut page = format!("{header}\n{flags}\n");
        for (number, section) in (1..).zip(&self.sections) {
            page += &format!("\n{number}. {}\n", section.title);
            section.findings.iter().for_each(|finding| page += &finding.told());
            if !section.text.is_empty() {
                page += "\n";
                section.text.lines().for_each(|line| page += &format!("{}\n", format!("    {line}").trim_end()));
            }
        }
        page
    }

    /// Everything for programs.
    pub(super) fn json(&self) -> Vec<Value> {
        let finding = |found: &Finding| {
            let passed = found.verdict != Verdict::Bad;
            json!({ "verdict": found.verdict.slug(), "passed": passed, "text": found.text, "advice": found.advice })
        };
        let section = |section: &Section| {
            let findings: Vec<Value> = section.findings.iter().map(finding).collect();
            json!({ "title": section.title, "checks": findings, "text": section.text })
        };
        self.sections.iter().map(section).collect()
    }

    fn find(&mut self, verdict: Verdict, text: &str, advice: Option<&str>) -> Result<(), Exit> {
        let finding = Finding { verdict, text: text.to_owned(), advice: advice.map(str::to_owned) };
        let told = finding.told();
        if let Some(section) = self.sections.last_mut() {
            section.findings.push(finding);
        }
        // What is wrong is said to those, too, who want to hear little.
        match verdict {
            Verdict::Good | Verdict::Note => self.screen.progress(told.trim_end()),
            Verdict::Warning | Verdict::Bad => self.screen.say(told.trim_end()),
        }
    }
}

impl Finding {
    fn told(&self) -> String {
        let mut told = String::new();
        for (number, line) in self.text.lines().enumerate() {
            let sign = if number == 0 { self.verdict.sign() } else { "" };
            told += &format!("   {sign}{line}\n");
        }
        match &self.advice {
            Some(advice) => format!("{told}      What to do: {advice}\n"),
            None => told,
        }
    }
}

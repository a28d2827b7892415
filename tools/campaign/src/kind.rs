//! The kinds of tests, and the name of a case: `kills:17`.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail};

/// A kind of test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TestKind {
    /// Mutated wav, flac, ogg and mp3 files.
    Recordings,
    /// Mutated metadata lists, manifests, exclude lists and length caches.
    Lists,
    /// Mutated config files.
    Configs,
    /// Mutated run logs.
    RunLogs,
    /// Mutated checkpoints.
    Checkpoints,
    /// Mutated texts and voice references of `synthesize`.
    Speech,
    /// SIGKILL at random moments.
    Kills,
    /// SIGTERM, SIGINT, SIGHUP, SIGSTOP at random moments.
    Signals,
    /// Full and read-only disks.
    Disks,
    /// Unusual environments.
    Environments,
    /// Faults that Tandem injects on request.
    Faults,
    /// One long run whose memory must stay flat.
    Soak,
    /// Mutated tar, Parquet and Arrow files, their indexes, and mixtures.
    Shards,
}

impl TestKind {
    pub(crate) const ALL: [TestKind; 13] = [
        TestKind::Soak,
        TestKind::Kills,
        TestKind::Recordings,
        TestKind::Lists,
        TestKind::Shards,
        TestKind::Configs,
        TestKind::RunLogs,
        TestKind::Checkpoints,
        TestKind::Speech,
        TestKind::Signals,
        TestKind::Disks,
        TestKind::Environments,
        TestKind::Faults,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            TestKind::Recordings => "recordings",
            TestKind::Lists => "lists",
            TestKind::Configs => "configs",
            TestKind::RunLogs => "run-logs",
            TestKind::Checkpoints => "checkpoints",
            TestKind::Speech => "speech",
            TestKind::Kills => "kills",
            TestKind::Signals => "signals",
            TestKind::Disks => "disks",
            TestKind::Environments => "environments",
            TestKind::Faults => "faults",
            TestKind::Soak => "soak",
            TestKind::Shards => "shards",
        }
    }

    /// What its inputs are, for the table.
    pub(crate) fn inputs(self) -> &'static str {
        match self {
            TestKind::Recordings | TestKind::Lists | TestKind::Configs | TestKind::RunLogs | TestKind::Checkpoints => {
                "mutated files"
            }
            TestKind::Speech | TestKind::Shards => "mutated files",
            TestKind::Kills => "kills",
            TestKind::Signals => "signals",
            TestKind::Disks => "disk faults",
            TestKind::Environments => "environments",
            TestKind::Faults => "injected faults",
            TestKind::Soak => "samples",
        }
    }

    /// The share of the time that this kind gets, relative to the others. The soak has a length of its own.
    pub(crate) fn weight(self) -> f64 {
        match self {
            TestKind::Recordings => 18.0,
            TestKind::Lists | TestKind::Shards => 12.0,
            TestKind::Configs | TestKind::RunLogs | TestKind::Speech => 5.0,
            TestKind::Checkpoints | TestKind::Environments => 10.0,
            TestKind::Kills => 18.0,
            TestKind::Signals | TestKind::Disks => 8.0,
            TestKind::Faults => 10.0,
            TestKind::Soak => 1.0,
        }
    }

    /// A number that never changes, for the seeds of its cases.
    pub(crate) fn index(self) -> u64 {
        self as u64
    }
}

impl FromStr for TestKind {
    type Err = anyhow::Error;

    fn from_str(given: &str) -> anyhow::Result<TestKind> {
        let known = TestKind::ALL.map(TestKind::name).join(", ");
        let found = TestKind::ALL.into_iter().find(|kind| kind.name() == given);
        found.with_context(|| format!("'{given}' is not a kind of test: expected one of {known}"))
    }
}

/// The name of a case: its kind and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CaseId {
    pub(crate) kind: TestKind,
    pub(crate) number: u64,
}

impl fmt::Display for CaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.name(), self.number)
    }
}

/// What `--only` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// Every kind.
    All,
    /// All cases of one kind.
    Kind(TestKind),
    /// One case.
    Case(CaseId),
}

impl FromStr for Selection {
    type Err = anyhow::Error;

    fn from_str(given: &str) -> anyhow::Result<Selection> {
        match given.split_once(':') {
            None => Ok(Selection::Kind(given.parse()?)),
            Some((kind, number)) => {
                let Ok(number) = number.parse() else {
                    bail!("'{number}' is not a case number: expected for example kills:17")
                };
                Ok(Selection::Case(CaseId { kind: kind.parse()?, number }))
            }
        }
    }
}

impl Selection {
    pub(crate) fn includes(self, kind: TestKind) -> bool {
        match self {
            Selection::All => true,
            Selection::Kind(only) => only == kind,
            Selection::Case(case) => case.kind == kind,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_found_by_its_name() {
        for kind in TestKind::ALL {
            let case = CaseId { kind, number: 17 };
            assert_eq!(case.to_string().parse::<Selection>().unwrap(), Selection::Case(case));
            assert_eq!(kind.name().parse::<Selection>().unwrap(), Selection::Kind(kind));
        }
        assert!("kill:1".parse::<Selection>().is_err() && "kills:x".parse::<Selection>().is_err());
    }
}

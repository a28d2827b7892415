//! The envelope an event travels in: one per line of the run log.

use serde::{Deserialize, Serialize};

use crate::RunEvent;

/// The version of the vocabulary, written into every record.
///
/// Raised only when something that was there before changes: a field goes, a type or a meaning is another, a field
/// takes values it never took. New kinds and new fields do not raise it. The names `v`, `seq`, `t_ns`, `dropped` and
/// `event` stay in every version: they are what lets an old reader step over what it does not understand.
pub const VERSION: u32 = 1;

/// One event, as the run log holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The [`VERSION`] of the program that wrote it.
    pub v: u32,
    /// Its place in the log, from 0 and without gaps: what was dropped never had a number.
    pub seq: u64,
    /// When it was emitted, since the log was opened. Threads race for their place in the log, so neighbours may
    /// stand in the wrong order by the time that takes.
    pub t_ns: u64,
    /// How many events had been lost when this one was written, since the log was opened.
    pub dropped: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: RunEvent,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_flat_object() {
        let event = RunEvent::Step { step: 7, wall_ns: u64::MAX, wait_ns: 0 };
        let record = Record { v: VERSION, seq: 3, t_ns: 12, dropped: 1, event };
        let json = r#"{"v":1,"seq":3,"t_ns":12,"dropped":1,"event":"step","step":7,"wall_ns":18446744073709551615,"wait_ns":0}"#;
        assert_eq!(serde_json::to_string(&record).unwrap(), json);
        assert_eq!(serde_json::from_str::<Record>(json).unwrap(), record);
    }
}

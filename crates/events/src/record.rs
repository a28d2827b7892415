//! The envelope of an event: one per line of the run log.

use serde::{Deserialize, Serialize};

use crate::RunEvent;

/// The version of the schema, written into every record.
///
/// It is raised only when something existing changes: a name, a type or a meaning, a field is removed, or a field takes
/// values it never took. New kinds and new fields do not raise it. The names `v`, `seq`, `t_ns`, `dropped` and `event`
/// stay in every version: with them an old reader can skip records it does not understand.
///
/// Version 2 renamed six kinds and four fields; they still read under their old names.
pub const VERSION: u32 = 2;

/// One event, as stored in the run log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The [`VERSION`] of the program that wrote it.
    pub v: u32,
    /// Its position in the log, from 0 and without gaps: dropped events get no number.
    pub seq: u64,
    /// When it was emitted, since the log was opened. Threads race for positions in the log, so neighbouring records may
    /// be slightly out of order.
    pub t_ns: u64,
    /// Events dropped before this one was written, since the log was opened.
    pub dropped: u64,
    /// The event.
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
        let json = r#"{"v":2,"seq":3,"t_ns":12,"dropped":1,"event":"step","step":7,"wall_ns":18446744073709551615,"wait_ns":0}"#;
        assert_eq!(serde_json::to_string(&record).unwrap(), json);
        assert_eq!(serde_json::from_str::<Record>(json).unwrap(), record);
    }
}

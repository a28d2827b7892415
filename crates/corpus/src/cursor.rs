//! A place in the order of batches, in a few bytes: what a checkpoint keeps of the data side.

use serde::{Deserialize, Serialize};

/// The batch that comes next. Together with the seed, the corpus and its shapes it says all there is to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The batch in it, from 0.
    pub k: u64,
}

impl Cursor {
    /// The first batch of the first epoch.
    pub const START: Cursor = Cursor { epoch: 0, k: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_a_few_bytes_of_json() {
        let cursor = Cursor { epoch: 3, k: 41 };
        let json = serde_json::to_string(&cursor).unwrap();
        assert_eq!(json, r#"{"epoch":3,"k":41}"#);
        assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
        assert!(serde_json::from_str::<Cursor>(r#"{"epoch":3}"#).is_err());
        assert!(serde_json::from_str::<Cursor>(r#"{"epoch":-3,"k":0}"#).is_err());
    }
}

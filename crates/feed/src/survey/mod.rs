//! A corpus before a run.

mod pool;
pub(crate) mod scan;
pub(crate) mod buckets;
pub(crate) mod tokenizer;
pub(crate) mod training_set;
pub(crate) mod check;
pub(crate) mod report;
pub(crate) mod show;

//! A corpus before a run: how long its recordings are, which rows train, in which shapes, and what is wrong with it.
//!
//! [`scan_lengths`](scan::scan_lengths) measures recordings, [`TrainingSet`](training_set::TrainingSet) selects the rows,
//! [`BucketPlan`](buckets::BucketPlan) gives their shapes. [`check`](check::check) decodes everything and reports problems.

mod worker_pool;
pub(crate) mod open;
pub(crate) mod scan;
pub(crate) mod custom_text;
pub(crate) mod tokenizer;
pub(crate) mod languages;
pub(crate) mod buckets;
pub(crate) mod left_out;
pub(crate) mod training_set;
pub(crate) mod pack;
pub(crate) mod check;
pub(crate) mod report;
pub(crate) mod show;

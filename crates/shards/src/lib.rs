//! Containers of many recordings: tar archives, Parquet and Arrow files, as members and rows at byte positions.
//!
//! A container is read once, from front to back, without the recordings in it: what comes out is where each one is. A
//! recording can then be read at any time with one ranged read. Nothing here knows what a corpus or a recording is.

mod fault;

mod tar;
mod tar_writer;

mod table;
mod arrow;
mod parquet;
mod parquet_writer;

pub use arrow::ArrowTable;
pub use fault::ShardFault;
pub use parquet::{PageTable, ParquetTable, WantedColumn, WantedForm};
pub use parquet_writer::{ParquetRow, ParquetShardWriter};
pub use table::{Cell, ColumnKind, TableColumn, ValueAddress};
pub use tar::{TarMember, TarReader};
pub use tar_writer::TarWriter;

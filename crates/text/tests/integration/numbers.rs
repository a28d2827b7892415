//! Numbers as they are read, against tables that nobody here wrote: num2words, checked against Unicode CLDR
//! (`tools/reference/text/make.py`).
//!
//! Readings that no table has (times, money, fractions, ranges) are put together here, from the words of the tables.

mod english;
mod persian;
mod reference;

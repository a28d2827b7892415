//! Lists of strings as strings. F5-TTS stores a text as its characters, or as its pinyin syllables and what is between
//! them: joined, they are the text.

use super::column::{Offsets, is_set};

/// Joins the items of each list. `text` has the items from their first offset on; it becomes the text of the lists, from
/// the first offset of the answer on.
///
/// Items are moved inside `text`: an item that is null may have bytes, and they are no text. `None` if `lists` has items
/// that `items` or `text` does not have.
pub(super) fn join_items(
    lists: &Offsets,
    items: &Offsets,
    validity: Option<&[u8]>,
    text: &mut Vec<u8>,
) -> Option<Offsets> {
    let mut len = 0;
    let mut ends = 0_i64.to_le_bytes().to_vec();
    for list in 0..lists.num_values() {
        let (first, end) = lists.get(list)?;
        for item in usize::try_from(first).ok()?..usize::try_from(end).ok()? {
            if validity.is_none_or(|bits| is_set(bits, item)) {
                let item = items.place(item).filter(|item| item.end <= text.len())?;
                let num_bytes = item.len();
                text.copy_within(item, len);
                len += num_bytes;
            }
        }
        ends.extend(i64::try_from(len).ok()?.to_le_bytes());
    }
    text.truncate(len);
    Offsets::check(ends, true, lists.num_values(), len as u64).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offsets(offsets: &[i32], data_len: u64) -> Offsets {
        let bytes = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        Offsets::check(bytes, false, offsets.len() - 1, data_len).unwrap()
    }

    fn joined(lists: &Offsets, items: &Offsets, validity: Option<&[u8]>, text: &[u8]) -> Option<Vec<Vec<u8>>> {
        let mut text = text.to_vec();
        let joined = join_items(lists, items, validity, &mut text)?;
        (0..joined.num_values()).map(|list| Some(text[joined.place(list)?].to_vec())).collect()
    }

    #[test]
    fn a_list_is_the_text_of_its_items() {
        // Four items: ab, nothing, c, def. They begin at byte 10 of their buffer.
        let items = offsets(&[10, 12, 12, 13, 16], 16);
        let check = |lists: &[i32], validity: Option<&[u8]>, expected: &[&str]| {
            let found = joined(&offsets(lists, 4), &items, validity, b"abcdef").unwrap();
            assert_eq!(found, expected.iter().map(|text| text.as_bytes()).collect::<Vec<_>>(), "{lists:?}");
        };
        check(&[0, 4], None, &["abcdef"]);
        check(&[0, 2, 2, 4], None, &["ab", "", "cdef"]);
        check(&[2, 3], None, &["c"]);
        check(&[1], None, &[]);
        // Items that are null have bytes here.
        check(&[0, 4], Some(&[0b1011]), &["abdef"]);
        check(&[0, 1, 2, 3, 4], Some(&[0b1010]), &["", "", "", "def"]);
        check(&[0, 4], Some(&[]), &[""]);
    }

    #[test]
    fn items_that_are_not_there_are_no_text() {
        let items = offsets(&[0, 2, 4], 4);
        assert_eq!(joined(&offsets(&[0, 3], 3), &items, None, b"abcd"), None, "an item");
        assert_eq!(joined(&offsets(&[0, 2], 2), &items, None, b"abc"), None, "a byte");
        assert_eq!(joined(&offsets(&[0, 1], 1), &Offsets::default(), None, b""), None, "all items");
        assert_eq!(joined(&offsets(&[0, 0], 0), &Offsets::default(), None, b""), Some(vec![vec![]]));
    }

    proptest! {
        /// Against the definition: items are looked up one by one.
        #[test]
        fn joined_items_are_the_items_in_order(
            lists in prop::collection::vec(prop::collection::vec((any::<bool>(), "\\PC{0,3}"), 0..5), 0..8), before in 0..50_i32,
        ) {
            let (mut ends, mut item_ends, mut text, mut bits) = (vec![0], vec![before], String::new(), vec![0_u8; 8]);
            for (is_valid, item) in lists.iter().flatten() {
                let at = item_ends.len() - 1;
                bits[at / 8] |= u8::from(*is_valid) << (at % 8);
                text.push_str(item);
                item_ends.push(before + text.len() as i32);
            }
            for list in &lists {
                ends.push(ends[ends.len() - 1] + list.len() as i32);
            }
            let (num_items, last) = (item_ends.len() as u64 - 1, before as u64 + text.len() as u64);
            let (outer, items) = (offsets(&ends, num_items), offsets(&item_ends, last));
            let expected = lists.iter().map(|list| {
                list.iter().filter(|(is_valid, _)| *is_valid).flat_map(|(_, item)| item.bytes()).collect::<Vec<u8>>()
            });
            let found = joined(&outer, &items, Some(&bits), text.as_bytes());
            prop_assert_eq!(found, Some(expected.collect()));
        }

        /// Offsets that passed their own check, of lists, items and text that do not belong together.
        #[test]
        fn what_does_not_belong_together_never_panics(
            mut lists in prop::collection::vec(0..40_i32, 1..10), mut items in prop::collection::vec(0..60_i32, 1..10),
            validity in prop::option::of(prop::collection::vec(any::<u8>(), 0..3)),
            text in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            lists.sort_unstable();
            items.sort_unstable();
            let (lists, items) = (offsets(&lists, 40), offsets(&items, 60));
            if let Some(found) = joined(&lists, &items, validity.as_deref(), &text) {
                prop_assert!(found.concat().len() <= text.len());
            }
        }
    }
}

//! Slurm's compact lists: of nodes, and of tasks per node.

/// The first host of a node list: `node[03-07,9],other` gives `node03`, with its zeros. `None` if this is not a node list.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    while let Some(next) = rest.chars().next() {
        match next {
            ',' => break,
            '[' => {
                let (inside, after) = rest[1..].split_once(']')?;
                host.push_str(first_number(inside)?);
                rest = after;
            }
            _ if is_host_char(next) => {
                host.push(next);
                rest = &rest[1..];
            }
            _ => return None,
        }
    }
    (!host.is_empty()).then_some(host)
}

/// The first number of `03-07,9`, as it is written.
fn first_number(ranges: &str) -> Option<&str> {
    let end = ranges.find(|c: char| !c.is_ascii_digit()).unwrap_or(ranges.len());
    let is_list = ranges.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | ','));
    (end > 0 && is_list).then(|| &ranges[..end])
}

fn is_host_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')
}

/// The number of tasks on node number `node`: `4(x2),3` gives 4, 4 and 3. `None` if the list is malformed or shorter.
pub(super) fn tasks_on_node(list: &str, node: u32) -> Option<u32> {
    let mut before = node;
    for entry in list.split(',') {
        let (tasks, nodes) = match entry.split_once("(x") {
            Some((tasks, repeat)) => (tasks, repeat.strip_suffix(')')?.parse().ok()?),
            None => (entry, 1),
        };
        let tasks: u32 = tasks.parse().ok()?;
        match before.checked_sub(nodes) {
            Some(left) => before = left,
            None => return Some(tasks),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_host_of_a_node_list_has_its_zeros() {
        let check = |list, host: Option<&str>| assert_eq!(first_host(list).as_deref(), host, "{list}");
        check("node[03-07,9],other", Some("node03"));
        check("node3", Some("node3"));
        check("a,b", Some("a"));
        check("gpu-[001,004-006]", Some("gpu-001"));
        check("rack[1-2]n[08-09].cluster", Some("rack1n08.cluster"));
        check("", None);
        check(",a", None);
        check("node[", None);
        check("node[]", None);
        check("node[a]", None);
        check("node 1", None);
    }

    #[test]
    fn tasks_per_node_are_repeated() {
        let tasks = |list| (0..4).map(|node| tasks_on_node(list, node)).collect::<Vec<_>>();
        assert_eq!(tasks("4(x2),3"), [Some(4), Some(4), Some(3), None]);
        assert_eq!(tasks("8"), [Some(8), None, None, None]);
        assert_eq!(tasks("1,2,3(x4000000000)"), [Some(1), Some(2), Some(3), Some(3)]);
        assert_eq!(tasks("4(x2"), [None; 4]);
        assert_eq!(tasks(""), [None; 4]);
    }

    proptest! {
        #[test]
        fn any_text_is_a_list_or_none(text in ".{0,40}", node: u32) {
            let _ = first_host(&text);
            let _ = tasks_on_node(&text, node);
        }

        #[test]
        fn lists_in_the_syntax_are_read(
            prefix in "[a-z][a-z0-9-]{0,8}", first in "[0-9]{1,5}", more in "(-[0-9]{1,5})?(,[0-9]{1,3}){0,3}",
            counts in prop::collection::vec((1u32..16, 1u32..5), 1..6),
        ) {
            prop_assert_eq!(first_host(&format!("{prefix}[{first}{more}],z")), Some(format!("{prefix}{first}")));
            let text: Vec<String> = counts.iter().map(|(tasks, nodes)| format!("{tasks}(x{nodes})")).collect();
            let all = counts.iter().flat_map(|&(tasks, nodes)| (0..nodes).map(move |_| tasks));
            for (node, tasks) in all.enumerate() {
                prop_assert_eq!(tasks_on_node(&text.join(","), node as u32), Some(tasks));
            }
        }
    }
}

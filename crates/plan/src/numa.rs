//! The NUMA nodes of a plan's cards: where the feed's threads run, and which copies go from one node to another.

use tandem_device::Route;

use crate::plan::{Plan, RolePlan};

/// The nodes of both cards, and what runs there; `None` if the machine has one node or they are not known.
pub(crate) fn describe(plan: &Plan) -> Option<String> {
    let node = |role: &RolePlan| {
        let (card, numa) = (role.card?, role.numa.as_ref()?);
        Some(format!("{} GPU {card}: {numa}", role.role))
    };
    let nodes: Vec<String> = [&plan.data, &plan.model].into_iter().filter_map(node).collect();
    let placed = match &plan.data.numa {
        Some(numa) if !numa.cores.is_empty() => {
            format!("; the feed's threads and pinned memory are on node {}", numa.node)
        }
        _ => String::new(),
    };
    (!nodes.is_empty()).then(|| nodes.join(", ") + &placed)
}

/// Whether batches go through host memory from one node to another.
pub(crate) fn is_between_nodes(route: Route, data: &RolePlan, model: &RolePlan) -> bool {
    let nodes = [data, model].map(|role| role.numa.as_ref().map(|numa| numa.node));
    matches!(nodes, [Some(from), Some(to)] if from != to && route == Route::Bounce)
}

/// The warning about a bounce between two nodes.
pub(crate) fn between_nodes_note(route: Route, data: &RolePlan, model: &RolePlan) -> Option<String> {
    let (from, to) = (data.numa.as_ref()?.node, model.numa.as_ref()?.node);
    is_between_nodes(route, data, model).then(|| {
        format!("batches bounce from NUMA node {from} to node {to}, over the link between the processors; two cards of one node avoid it")
    })
}

#[cfg(test)]
mod tests {
    use tandem_device::NumaNode;

    use super::*;
    use crate::fixture::{Chains, gpus, settings};
    use crate::hardware::Hardware;
    use crate::json::plan_json;
    use crate::show::show_plan;

    /// Cards on these nodes of four cores each.
    fn machine(nodes: &[u32]) -> Hardware {
        let mut hardware = gpus(nodes.len(), 24);
        for (facts, &node) in hardware.cards.iter_mut().zip(nodes) {
            let first = 4 * node as usize;
            facts.numa = Some(NumaNode { node, cores: (first..first + 4).collect() });
        }
        hardware
    }

    fn plan(line: &str, hardware: &Hardware) -> Plan {
        Plan::solve(&settings(line), hardware, &Chains, None).unwrap()
    }

    #[test]
    fn a_plan_says_on_which_nodes_its_cards_are() {
        let check = |line: &str, nodes: &[u32], expected: &str| {
            let hardware = machine(nodes);
            let text = show_plan(&plan(line, &hardware), &hardware);
            assert!(text.contains(&format!("\nNUMA:        {expected}\n")), "{text}");
        };
        let here = |node: u32| format!("; the feed's threads and pinned memory are on node {node}");
        let cores = ["data GPU 0: NUMA node 0 (cores 0-3)", "model GPU 1: NUMA node 1 (cores 4-7)"];
        check("--data-gpu 0 --model-gpu 1", &[0, 1], &(cores.join(", ") + &here(0)));
        let one_card = "data GPU 0: NUMA node 1 (cores 4-7), model GPU 0: NUMA node 1 (cores 4-7)";
        check("--gpu 0", &[1], &(one_card.to_owned() + &here(1)));
        // Without nodes nothing is said.
        let hardware = gpus(2, 24);
        let unknown = plan("--data-gpu 0 --model-gpu 1", &hardware);
        assert!(!show_plan(&unknown, &hardware).contains("NUMA"));
        assert_eq!(plan_json(&unknown, &hardware)["roles"]["data"]["numa"], serde_json::Value::Null);
        let hardware = machine(&[0, 1]);
        let json = plan_json(&plan("--data-gpu 1 --model-gpu 0", &hardware), &hardware);
        assert_eq!(json["roles"]["data"]["numa"], serde_json::json!({ "node": 1, "cores": "4-7" }));
    }

    #[test]
    fn decode_threads_are_as_many_as_the_node_has_cores() {
        let pair = "--data-gpu 0 --model-gpu 1";
        assert_eq!((plan(pair, &gpus(2, 24)).threads, plan(pair, &gpus(2, 24)).max_threads), (8, 32));
        assert_eq!((plan(pair, &machine(&[0, 1])).threads, plan(pair, &machine(&[0, 1])).max_threads), (4, 8));
        // A node none of whose cores may be used changes nothing.
        let mut forbidden = machine(&[0, 1]);
        forbidden.cards[0].numa = Some(NumaNode { node: 0, cores: Vec::new() });
        let plan = plan(pair, &forbidden);
        assert_eq!(plan.threads, 8);
        assert!(!describe(&plan).unwrap().contains("the feed's threads"));
    }

    #[test]
    fn a_bounce_between_two_nodes_is_a_note_and_a_card_of_the_models_node_is_advised() {
        let pair = "--data-gpu 0 --model-gpu 1 --batch-size 16";
        let between_nodes = "batches bounce from NUMA node 0 to node 1";
        let notes = |line: &str, hardware: &Hardware| plan(line, hardware).notes.join("\n");
        assert!(notes(pair, &machine(&[0, 1])).contains(between_nodes));
        assert!(!notes(pair, &machine(&[0, 0])).contains(between_nodes));
        let linked = Hardware { peer: vec![vec![true; 2]; 2], ..machine(&[0, 1]) };
        assert!(!notes(pair, &linked).contains(between_nodes), "peer copies do not use host memory");
        assert!(notes(&format!("{pair} --transfer bounce"), &linked).contains(between_nodes));
        // A route that falls back to bounce is noted too.
        let mut fallen = plan(pair, &linked);
        let bounce = plan(&format!("{pair} --transfer bounce"), &linked).transfer;
        fallen.reroute(bounce);
        assert!(fallen.notes.iter().any(|note| note.contains(between_nodes)));
        let advice = |nodes: &[u32]| plan(pair, &machine(nodes)).advice.join("\n");
        assert!(advice(&[0, 1, 0, 1]).contains("--data-gpu 3 is on NUMA node 1 as well"), "{}", advice(&[0, 1, 0, 1]));
        assert!(!advice(&[0, 1, 0]).contains("NUMA"));
    }
}

//! Fragmentation, and accounting that adds up under any use.

use tandem_random::SplitMix;

use super::*;
use crate::machine::Machine;

fn arena(bytes: u64) -> Arena {
    let device = Machine::cpu().open(0).unwrap();
    let spec = ArenaSpec {
        role: Role::Data,
        limit_bytes: bytes + 10,
        driver_bytes: 10,
        arena_bytes: bytes,
        peer_bytes: 0,
        capped: false,
    };
    Arena::reserve_as(&device, spec, false).unwrap()
}

#[test]
fn a_fragmented_arena_is_not_reported_as_full() {
    let arena = arena(4 * 256);
    let mut blocks: Vec<Block> = (0..4).map(|_| arena.take("block", 256).unwrap()).collect();
    blocks.remove(2);
    blocks.remove(0);
    match arena.take("large", 512).unwrap_err() {
        DeviceError::Arena(ArenaError::Fragmented { asked: 512, free: 512, longest: 256, .. }) => {}
        other => panic!("{other}"),
    }
}

#[test]
fn accounting_adds_up_under_any_order_of_allocating_and_freeing() {
    let arena = arena(64 * 256);
    let mut held: Vec<Block> = Vec::new();
    let mut rng = SplitMix::new(1);
    for _ in 0..2000 {
        let random = rng.next_u64();
        if random.is_multiple_of(3) && !held.is_empty() {
            held.swap_remove(random as usize % held.len());
        } else if let Ok(block) = arena.take(["a", "b"][random as usize % 2], random % 1500) {
            held.push(block);
        }
        let spans: u64 = held.iter().map(|block| block.span).sum();
        let now = arena.memory();
        assert_eq!(now.used_bytes, spans + 10);
        assert_eq!(now.owners.iter().map(|(_, bytes)| bytes).sum::<u64>(), now.used_bytes);
        let mut places: Vec<_> = held.iter().map(|block| (block.offset, block.span)).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "blocks overlap");
    }
    drop(held);
    arena.take("all", 64 * 256).expect("all memory is free and contiguous again");
}

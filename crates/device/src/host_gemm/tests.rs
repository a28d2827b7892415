//! The tiling of C.

use super::*;

fn tiling(m: u32, n: u32, k: u32, batch: u32) -> Tiling {
    Tiling::of(&Gemm { batch, ..Gemm::dense(DType::F32, [m, n, k]) })
}

#[test]
fn pieces_cover_c_once() {
    let shapes = [(1, 1, 1), (6400, 768, 192), (192, 768, 6400), (193, 191, 6401), (7, 5000, 3000), (5000, 7, 3000)];
    for (m, n, k) in shapes {
        for batch in [1, 3] {
            let tiling = tiling(m, n, k, batch);
            let mut seen = vec![0u8; (m * n * batch) as usize];
            for tile in (0..tiling.count()).map(|i| tiling.tile(i)) {
                for row in tile.row..tile.row + tile.rows {
                    let at = (tile.batch * m as usize + row) * n as usize + tile.column;
                    seen[at..at + tile.columns].iter_mut().for_each(|x| *x += 1);
                }
            }
            assert!(seen.iter().all(|x| *x == 1), "{tiling:?}");
        }
    }
}

#[test]
fn large_gemms_have_enough_tiles() {
    let shapes = [(6400, 768, 192), (192, 768, 6400), (1024, 1024, 1024), (6400, 80, 192)];
    for (m, n, k) in shapes {
        let tiles = tiling(m, n, k, 1).count();
        assert!(tiles >= MIN_TILES, "{m}x{n}x{k}: {tiles}");
    }
    assert_eq!(tiling(192, 192, 6400, 1).count(), 4, "smaller tiles cost more than they gain");
    assert_eq!(tiling(64, 64, 64, 1).count(), 1, "half a megaflop is not worth sharing");
    assert_eq!(tiling(0, 64, 64, 1).count(), 0);
    assert_eq!(tiling(64, 64, 64, 0).count(), 0);
}

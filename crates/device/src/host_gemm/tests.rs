//! How C is cut.

use super::*;

fn cut(m: u32, n: u32, k: u32, batch: u32) -> Cut {
    Cut::of(&Gemm { batch, ..Gemm::dense(DType::F32, [m, n, k]) })
}

#[test]
fn pieces_cover_c_once() {
    let shapes = [(1, 1, 1), (6400, 768, 192), (192, 768, 6400), (193, 191, 6401), (7, 5000, 3000), (5000, 7, 3000)];
    for (m, n, k) in shapes {
        for batch in [1, 3] {
            let cut = cut(m, n, k, batch);
            let mut seen = vec![0u8; (m * n * batch) as usize];
            for piece in (0..cut.count()).map(|i| cut.piece(i)) {
                for row in piece.row..piece.row + piece.rows {
                    let at = (piece.batch * m as usize + row) * n as usize + piece.column;
                    seen[at..at + piece.columns].iter_mut().for_each(|x| *x += 1);
                }
            }
            assert!(seen.iter().all(|x| *x == 1), "{cut:?}");
        }
    }
}

#[test]
fn there_are_enough_pieces_where_there_is_enough_work() {
    let shapes = [(6400, 768, 192), (192, 768, 6400), (1024, 1024, 1024), (6400, 80, 192)];
    for (m, n, k) in shapes {
        let pieces = cut(m, n, k, 1).count();
        assert!(pieces >= ENOUGH, "{m}x{n}x{k}: {pieces}");
    }
    assert_eq!(cut(192, 192, 6400, 1).count(), 4, "thinner pieces cost more than they share");
    assert_eq!(cut(64, 64, 64, 1).count(), 1, "half a megaflop is not worth sharing");
    assert_eq!(cut(0, 64, 64, 1).count(), 0);
    assert_eq!(cut(64, 64, 64, 0).count(), 0);
}

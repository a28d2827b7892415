//! A figure over steps in a bounded number of points: of a long run each is the mean of many.

/// More points than a terminal has dots.
const MOST_POINTS: usize = 512;

/// A figure over steps.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    points: Vec<Point>,
    /// Steps that one point stands for.
    steps_of_point: u64,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    first_step: u64,
    sum: f64,
    count: u64,
}

impl Default for Curve {
    fn default() -> Curve {
        Curve { points: Vec::new(), steps_of_point: 1 }
    }
}

impl Curve {
    /// Adds what `step` had. A step that was there before is done again, after a resume: what came behind it goes.
    pub(super) fn push(&mut self, step: u64, value: f64) {
        while self.points.last().is_some_and(|last| last.first_step >= step) {
            self.points.pop();
        }
        match self.points.last_mut() {
            Some(last) if step < last.first_step + self.steps_of_point => {
                last.sum += value;
                last.count += 1;
            }
            _ => self.points.push(Point { first_step: step, sum: value, count: 1 }),
        }
        if self.points.len() > MOST_POINTS {
            self.halve();
        }
    }

    /// Steps and values, in order.
    pub(super) fn points(&self) -> Vec<(f64, f64)> {
        self.points.iter().map(|point| (point.first_step as f64, point.sum / point.count as f64)).collect()
    }

    fn halve(&mut self) {
        self.steps_of_point *= 2;
        let join = |pair: &[Point]| Point {
            first_step: pair[0].first_step,
            sum: pair.iter().map(|point| point.sum).sum(),
            count: pair.iter().map(|point| point.count).sum(),
        };
        self.points = self.points.chunks(2).map(join).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_is_shown_step_by_step() {
        let mut curve = Curve::default();
        (1..=3).for_each(|step| curve.push(step, 10.0 * step as f64));
        assert_eq!(curve.points(), [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]);
    }

    #[test]
    fn a_long_run_keeps_its_shape_in_few_points() {
        let mut curve = Curve::default();
        (1..=1_000_000).for_each(|step| curve.push(step, step as f64));
        let points = curve.points();
        assert!(points.len() > MOST_POINTS / 2 && points.len() <= MOST_POINTS, "{}", points.len());
        let apart = curve.steps_of_point as f64;
        assert!(points.iter().all(|(step, mean)| (mean - step) >= 0.0 && (mean - step) < apart), "each near its steps");
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn steps_that_are_done_again_replace_those_that_were_lost() {
        let mut curve = Curve::default();
        (1..=10).for_each(|step| curve.push(step, 1.0));
        (6..=8).for_each(|step| curve.push(step, 2.0));
        let points = curve.points();
        assert_eq!((points.len(), points[4], points[5]), (8, (5.0, 1.0), (6.0, 2.0)));
    }
}

//! A value over steps, in a bounded number of points: in a long run each point is the mean of many steps.

/// More points than a terminal has dots.
const MAX_POINTS: usize = 512;

/// A value over steps.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    points: Vec<Point>,
    /// Steps per point.
    steps_per_point: u64,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    first_step: u64,
    sum: f64,
    count: u64,
}

impl Default for Curve {
    fn default() -> Curve {
        Curve { points: Vec::new(), steps_per_point: 1 }
    }
}

impl Curve {
    /// Adds the value of `step`. A step that is already there is repeated after a resume: the points from it on are dropped.
    pub(super) fn push(&mut self, step: u64, value: f64) {
        while self.points.last().is_some_and(|last| last.first_step >= step) {
            self.points.pop();
        }
        match self.points.last_mut() {
            Some(last) if step < last.first_step.saturating_add(self.steps_per_point) => {
                last.sum += value;
                last.count += 1;
            }
            _ => self.points.push(Point { first_step: step, sum: value, count: 1 }),
        }
        if self.points.len() > MAX_POINTS {
            self.halve();
        }
    }

    /// Steps and values, in order.
    pub(super) fn points(&self) -> Vec<(f64, f64)> {
        self.points.iter().map(|point| (point.first_step as f64, point.sum / point.count as f64)).collect()
    }

    fn halve(&mut self) {
        self.steps_per_point *= 2;
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
    fn a_long_run_keeps_its_shape_in_a_bounded_number_of_points() {
        let mut curve = Curve::default();
        (1..=1_000_000).for_each(|step| curve.push(step, step as f64));
        let points = curve.points();
        assert!(points.len() > MAX_POINTS / 2 && points.len() <= MAX_POINTS, "{}", points.len());
        let apart = curve.steps_per_point as f64;
        assert!(points.iter().all(|(step, mean)| (mean - step) >= 0.0 && (mean - step) < apart), "each near its steps");
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn repeated_steps_replace_the_earlier_ones() {
        let mut curve = Curve::default();
        (1..=10).for_each(|step| curve.push(step, 1.0));
        (6..=8).for_each(|step| curve.push(step, 2.0));
        let points = curve.points();
        assert_eq!((points.len(), points[4], points[5]), (8, (5.0, 1.0), (6.0, 2.0)));
    }
}

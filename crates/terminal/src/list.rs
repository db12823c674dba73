//! A list that is longer than the screen: the line chosen, and the first line shown.

/// Where one is in a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct List {
    /// The line chosen.
    pub at: usize,
    /// The first line shown.
    pub top: usize,
}

impl List {
    /// Goes up or down, not beyond the ends.
    pub fn go(&mut self, by: isize, len: usize) {
        self.at = self.at.saturating_add_signed(by).min(len.saturating_sub(1));
    }

    /// Keeps the line chosen among those there are and on the screen.
    pub fn keep(&mut self, len: usize, height: usize) {
        self.at = self.at.min(len.saturating_sub(1));
        // A longer screen does not end with blank lines while there are others above.
        self.top = self.top.min(len.saturating_sub(height)).min(self.at);
        if self.at >= self.top + height.max(1) {
            self.top = self.at + 1 - height.max(1);
        }
    }

    /// Moves what is shown of a text that has no line to be chosen.
    pub fn scroll(&mut self, by: isize, len: usize, height: usize) {
        self.top = self.top.saturating_add_signed(by).min(len.saturating_sub(height));
        self.at = self.top;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_line_chosen_is_there_and_on_the_screen(
            moves in proptest::collection::vec((-30isize..30, 0usize..60, 0usize..20), 1..30)
        ) {
            let mut list = List::default();
            for (by, len, height) in moves {
                list.go(by, len);
                list.keep(len, height);
                prop_assert!(list.at < len.max(1));
                prop_assert!(list.top <= list.at && list.at < list.top + height.max(1));
                prop_assert!(list.top == 0 || list.top + height.max(1) <= len.max(1));
            }
        }
    }
}

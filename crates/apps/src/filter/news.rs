//! What has changed while the filter runs, until somebody asks for it.
//!
//! That may take long, or be never: of what is true until it changes again the last is kept, and of what has happened the last lines.

use std::collections::VecDeque;

/// Lines about the port that are kept.
const MOST: usize = 64;

/// What has not been told yet.
#[derive(Default)]
pub(super) struct News {
    port: VecDeque<String>,
    /// Where the rules are that hold now.
    pub(super) places: Vec<String>,
    /// Which rules of the file that was read last do nothing.
    pub(super) idle: Vec<String>,
}

impl News {
    /// The port has done this, beside what it has done before.
    pub(super) fn add_of_port(&mut self, lines: Vec<String>) {
        self.port.extend(lines);
        self.port.drain(..self.port.len().saturating_sub(MOST));
    }

    /// What is to be told, for somebody who tells it.
    pub(super) fn take(&mut self) -> Vec<String> {
        let Self { port, places, idle } = std::mem::take(self);
        port.into_iter().chain(places).chain(idle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_happened_is_kept_and_what_is_so_now_takes_the_place_of_what_was() {
        let lines = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut news = News::default();
        news.add_of_port(lines(&["moved"]));
        (news.places, news.idle) = (lines(&["there"]), lines(&["idle"]));
        news.add_of_port(lines(&["moved back"]));
        news.places = lines(&["here"]);
        assert_eq!(news.take(), ["moved", "moved back", "here", "idle"]);
        assert_eq!(news.take(), [""; 0]);
        (0..100).for_each(|n| news.add_of_port(vec![n.to_string()]));
        let told = news.take();
        assert_eq!((told.len(), told[0].as_str(), told[63].as_str()), (MOST, "36", "99"));
    }
}

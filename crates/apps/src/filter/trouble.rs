//! What is wrong for a while, and whether somebody has been told.

/// One thing that may be wrong.
#[derive(Default)]
pub(super) struct Trouble {
    pub(super) why: Option<String>,
    is_told: bool,
}

impl Trouble {
    /// This is wrong now, or nothing any more. Returns whether that is new.
    pub(super) fn set(&mut self, why: Option<String>) -> bool {
        let is_new = self.why != why;
        if is_new {
            *self = Self { why, is_told: false };
        }
        is_new
    }

    /// What is wrong, for somebody who tells it.
    pub(super) fn tell(&mut self) -> Option<String> {
        self.is_told = true;
        self.why.clone()
    }

    /// What is wrong and has not been told.
    pub(super) fn untold(&mut self) -> Option<String> {
        if self.is_told { None } else { self.tell() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_left_to_be_told_until_it_was_and_again_when_it_is_another_thing() {
        let mut trouble = Trouble::default();
        let why = |text: &str| Some(text.to_owned());
        assert_eq!(trouble.untold(), None);
        assert!(trouble.set(why("one")));
        assert_eq!((trouble.untold(), trouble.untold()), (why("one"), None));
        assert!(!trouble.set(why("one")));
        assert_eq!((trouble.untold(), trouble.tell()), (None, why("one")));
        assert!(trouble.set(why("other")));
        assert_eq!((trouble.tell(), trouble.untold()), (why("other"), None));
        assert!(trouble.set(None));
        assert_eq!(trouble.tell(), None);
    }
}

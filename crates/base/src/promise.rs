//! How a promise stands: of CPU to a scope, or of short waits to a service.

use serde::{Deserialize, Serialize};

crate::named! {
/// How a promise stands, the better ones first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "&str")]
pub enum PromiseState {
    Kept = "kept",
    /// Nothing matches its scope; it stands for when something does.
    Waiting = "waiting",
    /// Kept, but only just, only by an estimate, or broken a few seconds ago.
    AtRisk = "at risk",
    /// Not known: the kernel does not count what is needed, or the document is of another version.
    #[default]
    Unknown = "unknown",
    /// Not kept.
    Broken = "broken",
    /// It does not fit next to those before it, so nothing is done for it.
    Refused = "refused",
}
}

impl PromiseState {
    /// Whether the answer is no: broken or refused.
    pub fn is_no(self) -> bool {
        matches!(self, Self::Broken | Self::Refused)
    }
}

impl From<PromiseState> for &str {
    fn from(state: PromiseState) -> Self {
        state.name()
    }
}

/// A name that there is not makes it unknown.
impl From<String> for PromiseState {
    fn from(name: String) -> Self {
        Self::named(&name).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::PromiseState;

    #[test]
    fn documents_have_the_name() {
        for state in PromiseState::ALL {
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(text, format!("\"{state}\""));
            assert_eq!(serde_json::from_str::<PromiseState>(&text).unwrap(), state);
            assert_eq!(state.is_no(), state > PromiseState::Unknown, "{state}");
        }
        assert_eq!(
            serde_json::from_str::<PromiseState>("\"of another version\"").unwrap(),
            PromiseState::Unknown
        );
    }
}

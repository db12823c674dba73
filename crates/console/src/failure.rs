//! Why a command failed, which decides its exit status.

#[derive(Debug)]
pub enum Failure {
    /// Status 1: the answer is no.
    No(anyhow::Error),
    /// Status 2: wrong usage or configuration.
    Usage(anyhow::Error),
    /// Status 3: the host cannot or may not.
    Cannot(anyhow::Error),
}

impl Failure {
    /// What failed, whatever the exit status would be.
    pub fn into_error(self) -> anyhow::Error {
        let (Self::No(error) | Self::Usage(error) | Self::Cannot(error)) = self;
        error
    }
}

impl From<anyhow::Error> for Failure {
    /// What a library reports is about the host unless the command says otherwise.
    fn from(error: anyhow::Error) -> Self {
        Self::Cannot(error)
    }
}

/// Result of a command: the exit status of a finished one (0 done, 1 the answer is no) or a failure.
pub type Outcome = Result<u8, Failure>;

/// What went wrong and what caused it; once, where the words of the one hold those of the other already.
pub fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string).filter(|cause| !cause.is_empty()) {
        if words.is_empty() {
            words = cause;
        } else if !words.ends_with(&cause) {
            words += &format!(": {cause}");
        }
    }
    words
}

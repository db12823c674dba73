//! The tools: what each takes, and the command line it becomes. No argument can become an option of its own: values go
//! behind `--NAME=`, a target behind `--`.

use serde_json::{Map, Value, json};

/// A command as a tool.
#[derive(Debug)]
pub struct Tool {
    pub name: &'static str,
    about: &'static str,
    /// Whether it changes the host.
    pub acts: bool,
    /// What the document's `schema` may be.
    schemas: &'static [&'static str],
    arguments: &'static [Argument],
}

#[derive(Debug)]
struct Argument {
    name: &'static str,
    kind: Kind,
    required: bool,
    about: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// `--NAME=TEXT`
    Text,
    /// `--NAME=TEXT`, one of these.
    OneOf(&'static [&'static str]),
    /// `--NAME=TEXT` for each.
    Texts,
    /// `--NAME`
    Flag,
    /// `--NAME=N`
    Number,
    Target,
}

const fn argument(name: &'static str, kind: Kind, about: &'static str) -> Argument {
    Argument { name, kind, required: false, about }
}

const fn required(name: &'static str, kind: Kind, about: &'static str) -> Argument {
    Argument { name, kind, required: true, about }
}

const SCOPE: Argument = argument(
    "scope",
    Kind::Texts,
    "pid:N, comm:REGEX, cgroup:/PATH, container:NAME, pod:NS/NAME, vm:NAME or all; ! in front excludes",
);
const BY: &[&str] = &["process", "task", "container", "pod", "vm", "cpu"];

const TOOLS: [Tool; 7] = [
    Tool {
        name: "ps",
        about: "Who uses the CPU and who waits for it, over an interval.",
        acts: false,
        schemas: &["evenkeel.ps/v1"],
        arguments: &[
            argument("by", Kind::OneOf(BY), "What a line is."),
            argument("interval", Kind::Text, "How long to look, such as 1s."),
            SCOPE,
        ],
    },
    Tool {
        name: "why",
        about: "Where a target's CPU time went (ran, waited, throttled, stolen, slept), and who had the CPU while it waited. \
                Needs root.",
        acts: false,
        schemas: &["evenkeel.why/v1"],
        arguments: &[
            required(
                "target",
                Kind::Target,
                "pid:N, comm:REGEX, cgroup:/PATH, container:NAME, pod:NS/NAME or vm:NAME",
            ),
            argument("for", Kind::Text, "How long to look, such as 10s."),
        ],
    },
    Tool {
        name: "check",
        about: "What about this host's set-up is wrong, each finding with its evidence and its fix.",
        acts: false,
        schemas: &["evenkeel.check/v1"],
        arguments: &[argument("interval", Kind::Text, "How long to look, such as 1s.")],
    },
    Tool {
        name: "history",
        about: "What earlier runs measured and changed; with `since`, rates from stored samples.",
        acts: false,
        schemas: &["evenkeel.history/v1", "evenkeel.run/v1"],
        arguments: &[
            argument("run", Kind::Text, "A run's number, or last."),
            argument("since", Kind::Text, "Rates of this long ago until now, such as 10m."),
        ],
    },
    Tool {
        name: "plan",
        about: "What `run` would try, and why. Nothing is written.",
        acts: false,
        schemas: &["evenkeel.plan/v1"],
        arguments: &[SCOPE],
    },
    Tool {
        name: "run",
        about: "The closed loop for a time: tries changes, keeps what helps and hurts no one, restores everything at the end.",
        acts: true,
        // Of a scope that is the whole host it is the plan.
        schemas: &["evenkeel.run/v1", "evenkeel.plan/v1"],
        arguments: &[
            Argument { required: true, ..SCOPE },
            required("for", Kind::Text, "How long, such as 5m."),
            argument("guarantees-only", Kind::Flag, "Keep promised shares only."),
        ],
    },
    Tool {
        name: "tune",
        about: "Searches a service's best settings by measured trials, as a tune file says.",
        acts: true,
        schemas: &["evenkeel.tune/v1"],
        arguments: &[
            required("file", Kind::Target, "The tune file (TOML) on this host."),
            argument("trials", Kind::Number, "Runs in all."),
            argument("time", Kind::Text, "Time in all, such as 10m."),
        ],
    },
];

/// A tool by name; those that act only where that is allowed.
pub fn find(name: &str, apply: bool) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name && (apply || !tool.acts))
}

/// The tools as the protocol lists them.
pub fn list(apply: bool) -> Vec<Value> {
    TOOLS.iter().filter(|tool| apply || !tool.acts).map(Tool::json).collect()
}

impl Tool {
    fn json(&self) -> Value {
        let properties: Map<String, Value> =
            self.arguments.iter().map(|argument| (argument.name.to_owned(), argument.json())).collect();
        let needed: Vec<&str> = self.arguments.iter().filter(|a| a.required).map(|a| a.name).collect();
        json!({
            "name": self.name,
            "description": self.about,
            "inputSchema": {
                "type": "object", "properties": properties, "required": needed, "additionalProperties": false,
            },
            "outputSchema": {
                "type": "object", "properties": { "schema": { "enum": self.schemas } }, "required": ["schema"],
            },
            "annotations": {
                "readOnlyHint": !self.acts, "destructiveHint": false, "idempotentHint": !self.acts, "openWorldHint": false,
            },
        })
    }
}

impl Argument {
    fn json(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Text | Kind::Target => json!({ "type": "string" }),
            Kind::OneOf(values) => json!({ "type": "string", "enum": values }),
            Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Kind::Flag => json!({ "type": "boolean" }),
            Kind::Number => json!({ "type": "integer", "minimum": 1 }),
        };
        schema["description"] = self.about.into();
        schema
    }

    /// As words of the command line.
    fn words(&self, value: &Value) -> Result<Vec<String>, String> {
        let name = self.name;
        let text = |value: &Value| match value.as_str() {
            Some(text) if !text.contains('\0') => Ok(text.to_owned()),
            _ => Err(format!("{name} is a text")),
        };
        Ok(match self.kind {
            Kind::Text => vec![format!("--{name}={}", text(value)?)],
            Kind::Target => vec!["--".to_owned(), text(value)?],
            Kind::OneOf(values) => match values.iter().find(|known| Some(**known) == value.as_str()) {
                Some(known) => vec![format!("--{name}={known}")],
                None => return Err(format!("{name} is one of {}", values.join(", "))),
            },
            Kind::Texts => {
                let all = value.as_array().ok_or_else(|| format!("{name} is a list of texts"))?;
                all.iter().map(|one| Ok(format!("--{name}={}", text(one)?))).collect::<Result<_, String>>()?
            }
            Kind::Flag => match value.as_bool() {
                Some(true) => vec![format!("--{name}")],
                Some(false) => Vec::new(),
                None => return Err(format!("{name} is true or false")),
            },
            Kind::Number => {
                let number = value.as_u64().filter(|n| *n > 0);
                vec![format!(
                    "--{name}={}",
                    number.ok_or_else(|| format!("{name} is a whole number above 0"))?
                )]
            }
        })
    }
}

/// The command line that arguments become; a target comes last.
pub fn words(tool: &Tool, arguments: &Value) -> Result<Vec<String>, String> {
    let given = arguments.as_object().ok_or("arguments are an object")?;
    if let Some(other) = given.keys().find(|key| !tool.arguments.iter().any(|a| a.name == key.as_str())) {
        let names: Vec<&str> = tool.arguments.iter().map(|a| a.name).collect();
        return Err(format!("there is no argument {other:?}, only {}", names.join(", ")));
    }
    let (mut words, mut last) = (Vec::new(), Vec::new());
    for argument in tool.arguments {
        match given.get(argument.name).filter(|value| !value.is_null()) {
            Some(value) if matches!(argument.kind, Kind::Target) => last = argument.words(value)?,
            Some(value) => words.extend(argument.words(value)?),
            None if argument.required => {
                return Err(format!("{} is needed: {}", argument.name, argument.about));
            }
            None => {}
        }
    }
    words.extend(last);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_argument_becomes_an_option() {
        let why = find("why", false).unwrap();
        let line = words(why, &json!({ "target": "--root=/x", "for": "--report=/etc/passwd" })).unwrap();
        assert_eq!(line, ["--for=--report=/etc/passwd", "--", "--root=/x"]);
        let ps = find("ps", false).unwrap();
        assert!(words(ps, &json!({ "by": "x" })).is_err() && words(ps, &json!({ "scope": "all" })).is_err());
        assert!(words(ps, &json!({ "root": "/" })).unwrap_err().contains("by, interval, scope"));
        assert!(words(why, &json!({})).unwrap_err().contains("target"));
        assert!(words(why, &json!({ "target": "a\0b" })).is_err());
    }

    #[test]
    fn what_acts_is_there_only_where_it_is_allowed() {
        assert_eq!((list(false).len(), list(true).len()), (5, 7));
        assert!(find("run", false).is_none() && find("tune", false).is_none());
        assert!(list(false).iter().all(|tool| tool["annotations"]["readOnlyHint"] == true));
        // A run without an end would never answer.
        assert!(
            words(find("run", true).unwrap(), &json!({ "scope": ["pid:1"] })).unwrap_err().contains("for")
        );
    }
}

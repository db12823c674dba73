//! Sweeps: every point is an experiment of its own, with the fields set that the point sets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::Value;

use super::{Experiment, Sweep, SweepPoint, Wrong};

/// Most points.
const MOST: usize = 100_000;

/// A point of all sweeps together.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Point {
    /// Number, from 0, in the order written (the last sweep varies fastest).
    pub index: usize,
    /// For people, such as `64x20` or `window, 30 %`; empty without a sweep.
    pub label: String,
    /// What was set, by field; a field that was removed is `null`.
    #[serde(default)]
    pub settings: BTreeMap<String, serde_json::Value>,
    /// Why the host could not give this point; then there are no tenants.
    #[serde(default)]
    pub unavailable: Option<String>,
}

/// A point with its experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedPoint {
    pub point: Point,
    /// The experiment there, without sweeps.
    pub experiment: Experiment,
}

/// All points of the sweeps, crossed, each with what `plain` is there. Without sweeps there is one, with an empty label.
pub(super) fn crossed(plain: &Experiment, sweeps: &[Sweep]) -> Result<Vec<PlannedPoint>, Wrong> {
    let fail =
        |sweep: usize, what: String| Wrong::new("[[sweep]]", sweep, format!("sweep {}: {what}", sweep + 1));
    let base = Value::try_from(plain).map_err(|e| fail(0, e.to_string()))?;
    let mut combined: Vec<Vec<SweepPoint>> = vec![Vec::new()];
    for (index, sweep) in sweeps.iter().enumerate() {
        let points = sweep.expand().map_err(|what| fail(index, what))?;
        if combined.len().saturating_mul(points.len()) > MOST {
            return Err(fail(index, format!("more than {MOST} points")));
        }
        combined = combined
            .into_iter()
            .flat_map(|before| {
                points.iter().map(move |point| {
                    let mut all = before.clone();
                    all.push(point.clone());
                    all
                })
            })
            .collect();
    }
    combined
        .into_iter()
        .enumerate()
        .map(|(index, parts)| {
            let mut value = base.clone();
            let mut settings = BTreeMap::new();
            for (sweep, part) in parts.iter().enumerate() {
                for (path, to) in &part.set {
                    let to = if to.as_str() == Some("none") { None } else { Some(to) };
                    set(&mut value, path, to).map_err(|what| fail(sweep, what))?;
                    // An instance stands in place of a rule, and a rule in place of an instance.
                    if let Some(other) = replaced(path).filter(|_| to.is_some()) {
                        set(&mut value, other, None).map_err(|what| fail(sweep, what))?;
                    }
                    let value = serde_json::to_value(to).map_err(|e| fail(sweep, e.to_string()))?;
                    settings.insert(path.clone(), value);
                }
            }
            let label = parts.iter().map(|p| p.label.as_str()).filter(|l| !l.is_empty()).collect::<Vec<_>>();
            let label = label.join(", ");
            let experiment: Experiment = value
                .try_into()
                .map_err(|e: toml::de::Error| fail(0, format!("at {label}: {}", e.message())))?;
            let unavailable = parts.iter().find_map(|p| p.unavailable.clone());
            let point = Point { index, label, settings, unavailable };
            Ok(PlannedPoint { point, experiment })
        })
        .collect()
}

impl Sweep {
    fn expand(&self) -> Result<Vec<SweepPoint>, String> {
        match (&self.field, self.values.is_empty(), self.points.is_empty()) {
            (Some(field), false, true) => {
                let short = field.rsplit('.').next().unwrap_or(field);
                let name = self.name.as_deref().unwrap_or(short);
                let point = |value: &Value| {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    SweepPoint::new(format!("{name} {text}")).set(field.clone(), value.clone())
                };
                Ok(self.values.iter().map(point).collect())
            }
            (None, true, false) => Ok(self.points.clone()),
            _ => Err("give either field and values, or points".into()),
        }
    }
}

/// The field that one stands in place of.
fn replaced(path: &str) -> Option<&'static str> {
    match path {
        "enforcer.instance" => Some("enforcer.rule"),
        "enforcer.rule" => Some("enforcer.instance"),
        _ => None,
    }
}

/// Sets or removes a field by its path.
fn set(value: &mut Value, path: &str, to: Option<&Value>) -> Result<(), String> {
    let mut words = path.split('.').peekable();
    let mut places: Vec<&mut Value> = vec![value];
    while let Some(word) = words.next() {
        let last = words.peek().is_none();
        let mut next = Vec::new();
        for place in places {
            match place {
                Value::Table(table) if last => {
                    match to {
                        Some(to) => table.insert(word.to_owned(), to.clone()),
                        None => table.remove(word),
                    };
                }
                Value::Table(table) => {
                    let inner = table.get_mut(word);
                    next.push(inner.ok_or_else(|| format!("field {path:?}: there is no {word:?}"))?);
                }
                Value::Array(items) => {
                    let found = next.len();
                    let number = word.parse::<usize>().ok();
                    for (index, item) in items.iter_mut().enumerate() {
                        let named = item.get("name").and_then(Value::as_str) == Some(word);
                        if word == "*" || named || number == Some(index) {
                            next.push(item);
                        }
                    }
                    if next.len() == found {
                        return Err(format!("field {path:?}: no tenant {word:?}"));
                    }
                    if last {
                        return Err(format!("field {path:?}: a tenant has fields, such as {path}.quota_pct"));
                    }
                }
                _ => return Err(format!("field {path:?}: {word:?} has no fields")),
            }
        }
        places = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_model::credit::Rule;

    const FILE: &str = "name = 'x'\n[[tenant]]\nname = 'a'\nload = 'spin'\nrun_s = 1\nquota_pct = 50\n\
        [[tenant]]\nname = 'b'\nunits = '64x2'\nload = 'primes'\nrun_s = 1\n";

    fn points(sweeps: &str) -> Result<Vec<PlannedPoint>, String> {
        let experiment = Experiment::parse(&format!("{FILE}{sweeps}")).map_err(|e| e.to_string())?;
        experiment.points().map_err(|e| e.to_string())
    }

    #[test]
    fn sweeps_are_crossed_and_set_what_they_name() {
        let all = points(
            "[[sweep]]\nfield = 'tenant.a.quota_pct'\nvalues = [25, 'none']\n\
             [[sweep]]\n[[sweep.point]]\nlabel = 'two'\nset = {'tenant.*.runs' = 2, 'tenant.1.units' = '8x3'}\n\
             [[sweep.point]]\nlabel = 'one'\n",
        )
        .unwrap();
        let labels: Vec<&str> = all.iter().map(|p| p.point.label.as_str()).collect();
        assert_eq!(
            labels,
            ["quota_pct 25, two", "quota_pct 25, one", "quota_pct none, two", "quota_pct none, one"]
        );
        assert_eq!(all[0].experiment.tenants[0].quota_pct, Some(25.0));
        assert_eq!(all[2].experiment.tenants[0].quota_pct, None);
        assert_eq!(all[0].experiment.tenants[1].runs, 2);
        assert_eq!(all[0].experiment.tenants().len(), 4);
        assert_eq!(all[1].experiment.tenants[1].runs, 1);
        assert!(all[2].point.settings["tenant.a.quota_pct"].is_null());
    }

    #[test]
    fn without_a_sweep_there_is_one_point() {
        let all = points("").unwrap();
        assert_eq!((all.len(), all[0].point.label.as_str()), (1, ""));
        assert_eq!(all[0].experiment.tenants()[2].name, "b2");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (sweep, part) in [
            ("[[sweep]]\nfield = 'tenant.c.runs'\nvalues = [1]\n", "no tenant \"c\""),
            ("[[sweep]]\nfield = 'tenant.a.runz'\nvalues = [1]\n", "runz"),
            ("[[sweep]]\nfield = 'tenant.a.runs'\nvalues = [0]\n", "runs 0"),
            ("[[sweep]]\nfield = 'tenant.a'\nvalues = [1]\n", "has fields"),
            (
                "[[sweep]]\nfield = 'repetitions'\nvalues = [1, 3]\n",
                "at repetitions 3: every point is repeated",
            ),
            ("[[sweep]]\nfield = 'name.x'\nvalues = [1]\n", "has no fields"),
            ("[[sweep]]\nfield = 'tenant.a.runs'\n", "either field and values"),
            ("[[sweep]]\nfeild = 'tenant.a.runs'\n", "did you mean `field`"),
        ] {
            let error = points(sweep).unwrap_err();
            assert!(error.starts_with("line 1") && error.contains(part), "{sweep}: {error}");
        }
        for (from, to, line, part) in [
            ("name = 'x'", "name = 'x/y'", 1, "letters"),
            ("name = 'b'", "name = 'a'", 1, "two tenants"),
            ("run_s = 1\nquota_pct = 50", "quota_pct = 50", 2, "never end"),
            ("quota_pct = 50", "quota_pct = 0.1", 2, "at least 1000"),
            ("load = 'spin'", "", 2, "a load or a command"),
            ("units = '64x2'", "units = '64y2'", 9, "64y2"),
            ("units = '64x2'", "units = '64x2'\nshares = 3", 7, "not several"),
            ("name = 'x'", "name = 'x'\nunits_available = 60", 8, "asked 64, available 60"),
            ("name = 'x'", "name = 'x'\nrepetition = 60", 2, "did you mean `repetitions`"),
        ] {
            let error = Experiment::parse(&FILE.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("line {line}:")) && error.contains(part), "{to}: {error}");
        }
    }

    const ENFORCED: &str =
        "name = 'x'\n[enforcer]\nINSTANCE\n[[tenant]]\nname = 'a'\nload = 'spin'\nrun_s = 1\n";

    #[test]
    fn an_instance_stands_for_its_rule() {
        let parse = |instead: &str| Experiment::parse(&ENFORCED.replace("INSTANCE", instead));
        let experiment = parse("instance = 't2.micro'\ntime_scale = 50").unwrap();
        let enforcer = experiment.enforcer.clone().unwrap();
        assert_eq!((enforcer.rule, enforcer.time_scale), (Rule::t2_micro(30.0), 50.0));
        assert_eq!(enforcer.instance.as_deref(), Some("t2.micro"));
        // The record keeps the rule that was in force, and a file the field that was there before.
        let json = serde_json::to_value(&experiment).unwrap();
        assert_eq!(json["enforcer"]["rule"]["rule"], "credits");
        assert_eq!(serde_json::from_value::<Experiment>(json.clone()).unwrap(), experiment);
        let mut old = json;
        old["enforcer"]["rule"]["per_hour"] = 7.0.into();
        let old: Experiment = serde_json::from_value(old).unwrap();
        assert_eq!(old.enforcer.unwrap().rule, Rule::Credits { start: 30.0, per_hour: 7.0, cap: 144.0 });
        assert!(
            parse("rule = { rule = 'constant', stolen = 0.5 }").unwrap().enforcer.unwrap().instance.is_none()
        );
        for (written, part) in [
            ("instance = 't2.mirco'", "near: t2.micro, "),
            ("time_scale = 2", "give a rule, or an instance"),
            ("instance = 't2.micro'\nrule = { rule = 'none' }", "give one of them"),
            ("instanze = 't2.micro'", "did you mean `instance`"),
        ] {
            let error = parse(written).unwrap_err().to_string();
            assert!(error.starts_with("line ") && error.contains(part), "{written}: {error}");
        }
    }

    #[test]
    fn instances_and_rules_are_swept_one_in_place_of_the_other() {
        let text = format!(
            "{}[[sweep]]\n[[sweep.point]]\nlabel = 'as it is'\n[[sweep.point]]\nlabel = 'shared'\n\
             set = {{ 'enforcer.instance' = 'm3.medium' }}\n[[sweep.point]]\nlabel = 'free'\n\
             set = {{ 'enforcer.rule' = {{ rule = 'none' }} }}\n",
            ENFORCED.replace("INSTANCE", "instance = 't2.micro'")
        );
        let points = Experiment::parse(&text).unwrap().points().unwrap();
        let rules: Vec<Rule> = points.iter().map(|p| p.experiment.enforcer.clone().unwrap().rule).collect();
        assert_eq!(rules, [Rule::t2_micro(30.0), Rule::Constant { stolen: 0.45 }, Rule::None]);
        let wrong = text.replace("m3.medium", "m3.medum");
        let error = Experiment::parse(&wrong).unwrap_err().to_string();
        assert!(error.contains("at shared") && error.contains("near: m3.medium"), "{error}");
    }

    #[test]
    fn an_experiment_survives_json() {
        let text = format!("{FILE}[[sweep]]\nfield = 'tenant.a.quota_pct'\nvalues = [25, 'none']\n");
        let experiment = Experiment::parse(&text).unwrap();
        let json = serde_json::to_string(&experiment).unwrap();
        assert_eq!(serde_json::from_str::<Experiment>(&json).unwrap(), experiment);
    }
}

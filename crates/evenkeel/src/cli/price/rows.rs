//! The lines of `evenkeel price`.

use evenkeel_model::credit::Rule;
use evenkeel_model::families::{self, Family};
use evenkeel_model::price::file::{Kind, Price, Prices};
use evenkeel_model::price::{Ask, Machine, Reckoned, money, reckon, reckon_unlimited};
use evenkeel_report::{Field, Table, Value, time};
use serde_json::json;

/// A job on a type.
#[derive(Debug)]
pub struct Row {
    name: String,
    names: Vec<String>,
    machine: Machine,
    memory_gib: Option<f64>,
    from: Option<String>,
    note: Option<String>,
    can_be_unlimited: bool,
    reckoned: Reckoned,
    /// Wall-clock seconds of a run.
    time_s: Option<f64>,
    /// CPU hours billed beyond the credits; `None`: not in "unlimited" mode.
    surplus_cpu_hours: Option<f64>,
    hour_price: Option<f64>,
    money: Option<f64>,
}

impl Row {
    /// Whether it has so much memory, or may have.
    pub fn has_memory(&self, gib: Option<f64>) -> bool {
        gib.is_none_or(|gib| self.memory_gib.is_none_or(|has| has >= gib))
    }

    /// Whether one of its names fits a pattern in which `*` stands for anything.
    pub fn is(&self, pattern: &str) -> bool {
        self.names.iter().any(|name| families::fits(pattern, name))
    }

    /// Whether its credits are spent, and the provider could bill for more instead.
    pub fn may_be_unlimited(&self) -> bool {
        self.can_be_unlimited && self.surplus_cpu_hours.is_none() && self.held_back()
    }

    /// Whether credits ran out.
    fn held_back(&self) -> bool {
        matches!(self.machine.rule, Rule::Credits { .. })
            && (self.reckoned.behind || self.reckoned.plain.throttled_after_s.is_some())
    }

    /// Why, and what else is to be known, for people.
    fn why(&self) -> String {
        let mut parts = Vec::new();
        let plain = &self.reckoned.plain;
        if let Some(hours) = self.surplus_cpu_hours {
            parts.push(if hours > 0.0 {
                format!("{hours:.2} CPU hours beyond its credits billed")
            } else {
                "nothing beyond its credits".to_owned()
            });
        }
        match (self.time_s, plain.real_s) {
            (None, Some(_)) if self.reckoned.behind && !self.reckoned.late => {
                parts.push("falls behind when its credits are spent: it uses more than it earns".into());
            }
            (None, Some(_)) => parts.push("falls behind: not done before its next start".into()),
            (None, None) => parts.push("not done in two weeks".into()),
            _ => {}
        }
        if self.surplus_cpu_hours.is_none() {
            match (self.machine.rule, plain.throttled_after_s) {
                (Rule::Credits { cap, .. }, Some(_)) if cap <= 0.0 => {}
                (Rule::Credits { .. }, Some(s)) if s <= 0.0 => parts.push("no credits at the start".into()),
                (Rule::Credits { .. }, Some(s)) => {
                    parts.push(format!("credits spent after {}", time::length(s)));
                }
                (Rule::Credits { .. }, None) => {}
                (Rule::Constant { stolen }, _) => parts.push(format!("{:.0} % stolen", 100.0 * stolen)),
                _ => {}
            }
        }
        if self.reckoned.best.is_some() {
            let without = plain.real_s.map_or_else(|| "over two weeks".to_owned(), time::length);
            parts.push(format!("without the limit {without}"));
        }
        parts.extend(self.note.clone());
        parts.join("; ")
    }
}

/// The line of a known family, without a price.
pub fn family(family: &Family, ask: &Ask) -> Row {
    let machine = Machine::from(family);
    let reckoned = reckon(&machine, ask);
    Row {
        name: family.name.clone(),
        names: family.names.clone(),
        machine,
        memory_gib: family.memory_gib,
        from: Some(family.from.clone()),
        note: family.note.clone(),
        can_be_unlimited: family.unlimited,
        time_s: reckoned.time_s(),
        reckoned,
        surplus_cpu_hours: None,
        hour_price: None,
        money: None,
    }
}

/// Lines of the types that have a price: one each, and one more where use beyond the credits has a price.
pub fn priced(prices: &Prices, ask: &Ask) -> Vec<Row> {
    prices.prices.iter().flat_map(|price| of_price(price, ask)).collect()
}

fn of_price(price: &Price, ask: &Ask) -> Vec<Row> {
    let mut row = match &price.kind {
        Kind::Known(known) => family(known, ask),
        Kind::Plain { cpus, memory_gib } => {
            let machine = Machine::plain(*cpus);
            let reckoned = reckon(&machine, ask);
            Row {
                name: String::new(),
                names: Vec::new(),
                machine,
                memory_gib: *memory_gib,
                from: None,
                note: None,
                can_be_unlimited: false,
                time_s: reckoned.time_s(),
                reckoned,
                surplus_cpu_hours: None,
                hour_price: None,
                money: None,
            }
        }
    };
    (row.name, row.names, row.hour_price) = (price.name.clone(), vec![price.name.clone()], Some(price.hour));
    row.money = row.time_s.map(|s| money(price.hour, ask.paid_s(s)));
    let machine = row.machine;
    let mut rows = vec![row];
    if let (Some(surplus), Some(free), Kind::Known(known)) =
        (price.surplus_cpu_hour, reckon_unlimited(&machine, ask), &price.kind)
    {
        let mut row = family(known, ask);
        (row.name, row.names) = (format!("{} (unlimited)", price.name), vec![price.name.clone()]);
        row.hour_price = Some(price.hour);
        row.reckoned.plain = free.outcome;
        row.reckoned.behind = free.behind;
        row.time_s = free.outcome.real_s.filter(|_| !free.behind);
        row.surplus_cpu_hours = Some(free.surplus_cpu_hours);
        row.money = row.time_s.map(|s| money(price.hour, ask.paid_s(s)) + surplus * free.surplus_cpu_hours);
        rows.push(row);
    }
    rows
}

/// By money, then time; what is never done comes last. What differs by less than is shown keeps its order.
pub fn sort(rows: &mut [Row]) {
    let key = |value: Option<f64>, steps: f64| value.map_or(f64::INFINITY, |value| (value * steps).round());
    let keys = |row: &Row| (key(row.money, 1e6), key(row.time_s, 10.0));
    rows.sort_by(|a, b| {
        let (a, b) = (keys(a), keys(b));
        a.0.total_cmp(&b.0).then_with(|| a.1.total_cmp(&b.1))
    });
}

/// The table for people, with money in this currency if there are prices.
pub fn text_table(currency: Option<&str>) -> Table<Row> {
    let mut fields = vec![
        Field::text("type", "TYPE", |row: &Row| row.name.clone()),
        Field::integer("cpus", "CPUS", |row: &Row| Some(i64::from(row.machine.cpus))),
        Field::text("kind", "RULE", |row: &Row| kind(&row.machine.rule)),
        Field::number("baseline_pct", "BASELINE %", 1, |row: &Row| Some(baseline_pct(row))),
        Field::new("limit_pct", "LIMIT %", |row: &Row| {
            limit_pct(row).map_or(Value::Absent, |limit| Value::from(format!("{limit:.0}")))
        })
        .right(),
        Field::new("time", "TIME", |row: &Row| {
            Value::from(row.time_s.map_or_else(|| "never".to_owned(), time::length))
        })
        .right(),
    ];
    if let Some(currency) = currency.map(str::to_owned) {
        fields.push(
            Field::new("money", "MONEY", move |row: &Row| {
                row.money.map_or(Value::Absent, |money| Value::from(format!("{money:.4} {currency}")))
            })
            .right(),
        );
    }
    fields.push(Field::text("note", "", Row::why));
    Table::new(fields)
}

pub fn document_table() -> Table<Row> {
    Table::new(vec![
        Field::text("type", "", |row: &Row| row.name.clone()),
        Field::new("names", "", |row: &Row| Value::List(row.names.clone())),
        Field::integer("cpus", "", |row: &Row| Some(i64::from(row.machine.cpus))),
        Field::number("memory_gib", "", 1, |row: &Row| row.memory_gib),
        Field::text("kind", "", |row: &Row| kind(&row.machine.rule)),
        Field::text("rule_words", "", |row: &Row| row.machine.rule.words()),
        Field::new("rule", "", |row: &Row| Value::Json(json!(row.machine.rule))),
        Field::new("rule_of_each_cpu", "", |row: &Row| Value::Bool(row.machine.each)),
        Field::text("from", "", |row: &Row| row.from.clone()),
        Field::number("baseline_pct", "", 1, |row: &Row| Some(baseline_pct(row))),
        Field::new("limit_pct", "", |row: &Row| or_absent(limit_pct(row))),
        Field::number("time_s", "", 1, |row: &Row| row.time_s),
        Field::number("time_without_limit_s", "", 1, |row: &Row| row.reckoned.plain.real_s),
        Field::new("falls_behind", "", |row: &Row| Value::Bool(row.reckoned.behind)),
        Field::new("credits_start", "", |row: &Row| or_absent(row.reckoned.start)),
        Field::new("credits_left", "", |row: &Row| or_absent(credits_left(row))),
        Field::new("held_back_after_s", "", |row: &Row| or_absent(row.reckoned.plain.throttled_after_s)),
        Field::new("surplus_cpu_hours", "", |row: &Row| or_absent(row.surplus_cpu_hours)),
        Field::new("hour_price", "", |row: &Row| or_absent(row.hour_price)),
        Field::new("money", "", |row: &Row| or_absent(row.money)),
        Field::text("note", "", Row::why),
    ])
}

fn baseline_pct(row: &Row) -> f64 {
    100.0 * row.machine.sustained()
}

fn limit_pct(row: &Row) -> Option<f64> {
    row.reckoned.best.map(|(limit, _)| 100.0 * limit)
}

fn or_absent(number: Option<f64>) -> Value {
    number.map_or(Value::Absent, Value::Number)
}

/// Credits after a run; none where more is billed.
fn credits_left(row: &Row) -> Option<f64> {
    row.reckoned.outcome().credits.filter(|_| row.surplus_cpu_hours.is_none())
}

/// A rule in a word or two.
fn kind(rule: &Rule) -> &'static str {
    match *rule {
        Rule::None => "none",
        Rule::Constant { .. } => "shared core",
        Rule::Window { .. } | Rule::Penalty { .. } => "throttles use",
        Rule::Credits { cap, .. } if cap <= 0.0 => "ceiling",
        Rule::Credits { .. } => "credits",
    }
}

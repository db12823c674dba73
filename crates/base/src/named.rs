/// An enum whose values have a name each, which stands behind the value: `name` gives it, and it is how the value is displayed;
/// `named` finds the value.
///
/// ```
/// evenkeel_base::named! {
/// /// Whose turn it is.
/// #[derive(Clone, Copy)]
/// pub enum Turn {
///     Mine = "mine",
///     /// Whoever comes next.
///     Others = "that of others",
/// }
/// }
/// assert_eq!((Turn::Mine.name(), Turn::Others.to_string().as_str()), ("mine", "that of others"));
/// ```
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $type:ident { $($(#[$of:meta])* $value:ident = $name:expr),+ $(,)? }) => {
        $(#[$meta])*
        $vis enum $type { $($(#[$of])* $value),+ }

        #[allow(dead_code, reason = "not every enum needs all")]
        impl $type {
            /// All values, in their order.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Its name, for people and in documents.
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$value => $name),+ }
            }

            /// The value of this name.
            $vis fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

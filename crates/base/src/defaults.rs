/// A structure whose default stands behind each field; without one it is that of the field's type.
///
/// ```
/// evenkeel_base::defaults! {
/// /// How to look.
/// #[derive(Debug, PartialEq)]
/// pub struct Options {
///     /// Seconds.
///     pub interval_s: f64 = 0.5,
///     pub deep: bool,
/// }
/// }
/// assert_eq!(Options::default(), Options { interval_s: 0.5, deep: false });
/// ```
#[macro_export]
macro_rules! defaults {
    ($(#[$meta:meta])* $vis:vis struct $type:ident {
        $($(#[$of:meta])* $seen:vis $field:ident: $is:ty $(= $default:expr)?),+ $(,)?
    }) => {
        $(#[$meta])*
        $vis struct $type { $($(#[$of])* $seen $field: $is),+ }

        impl Default for $type {
            fn default() -> Self {
                Self { $($field: $crate::defaults!(@ $($default)?)),+ }
            }
        }
    };
    (@) => { Default::default() };
    (@ $default:expr) => { $default };
}

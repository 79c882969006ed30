// Nothing but what is precompiled (meson.build).

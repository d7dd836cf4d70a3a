"""Changes of protocol and properties: what an upgrade, a downgrade or a property change entails."""

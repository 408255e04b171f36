"""What people attach to reviews: claims, bundles that can be re-verified, redacted reports."""

"""What a malicious name says."""

EVIL = "<script>alert(1)</script>"

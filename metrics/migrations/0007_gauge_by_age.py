import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('metrics', '0006_event_by_time'),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name='gaugewindow',
            name='gauge_by_age',
        ),
        migrations.AddIndex(
            model_name='gaugewindow',
            index=models.Index(django.db.models.functions.datetime.Extract('start_at', 'epoch'), name='gauge_by_age'),
        ),
    ]
